"""The raw sources by name; each is loaded when it is asked for."""

from importlib import import_module

from recap.data.prepare.plan import Source
from recap.errors import SettingsError

NAMES = ("brainmri", "liverct", "resc", "oct17", "chest", "his")


def find_source(name: str) -> Source:
    """A source by its name."""
    if name not in NAMES:
        raise SettingsError(f"No source is called '{name}'. There are: {', '.join(NAMES)}.")
    source: Source = import_module(f"recap.data.prepare.{name}").SOURCE
    return source
