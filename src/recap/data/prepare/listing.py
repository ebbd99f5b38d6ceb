"""What lies in a raw folder, also behind links: who has little room links to the raw data."""

from fnmatch import fnmatchcase
from pathlib import Path

from recap.data.walk import walk, walk_folders


def files_below(raw: Path, pattern: str) -> list[Path]:
    """Files below a folder whose names fit, sorted."""
    return sorted(file for file in walk(raw) if fnmatchcase(file.name, pattern))


def folders_below(raw: Path, name: str) -> list[Path]:
    """Folders of a name below a folder, sorted."""
    return sorted(folder for folder in walk_folders(raw) if folder.name == name and folder != raw)
