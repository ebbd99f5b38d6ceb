"""The versions that decide the numbers."""

from importlib.metadata import version


def library_versions() -> dict[str, str]:
    """The versions that decide the numbers."""
    names = ("recap-ad", "torch", "transformers", "numpy", "pillow")
    return {name: version(name) for name in names}
