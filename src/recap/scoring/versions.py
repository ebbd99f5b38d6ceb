"""The versions that decide the numbers."""

from functools import cache
from importlib.metadata import version

_PACKAGES = ("recap-ad", "torch", "transformers", "numpy", "pillow")


def library_versions() -> dict[str, str]:
    """The versions that decide the numbers."""
    return {name: _version(name) for name in _PACKAGES}


@cache  # every look reads and parses the whole description of a package
def _version(name: str) -> str:
    return version(name)
