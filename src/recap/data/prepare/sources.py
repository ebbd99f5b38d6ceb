"""The raw sources by name; each is loaded when it is asked for."""

from importlib import import_module

from recap.data.prepare.plan import Source
from recap.errors import SettingsError

_MODULES = ("brainmri", "liverct", "resc", "oct17", "chest", "his")


def source_names() -> tuple[str, ...]:
    """The names that `recap data prepare` knows."""
    return _MODULES


def find_source(name: str) -> Source:
    """A source by its name."""
    if name not in _MODULES:
        raise SettingsError(f"No source is called '{name}'. There are: {', '.join(_MODULES)}.")
    source: Source = import_module(f"recap.data.prepare.{name}").SOURCE
    return source
