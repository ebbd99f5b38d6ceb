"""Going through folders: links are followed, hidden files and what recap itself wrote are not."""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from recap.errors import InputError

# The files by which a saved detector, and a folder of results, are known.
_OUTPUTS = (("bundle.json",), ("scores.csv", "manifest.json"))
_SHARD_FILES = (re.compile(r"scores\.\d+-of-\d+\.csv"), re.compile(r"manifest\.\d+-of-\d+\.json"))


def is_output(folder: Path) -> bool:
    """Whether a folder is a detector or holds results: its pictures are no images to work on."""
    # Not is_file, which fails in a folder that cannot be read; entering that tells.
    if any(all(os.access(folder / name, os.F_OK) for name in names) for names in _OUTPUTS):
        return True
    # Listing every folder once more is slow on network drives; results have their pictures there.
    return os.access(folder / "overlays", os.F_OK) and _holds_shards(folder)


def _holds_shards(folder: Path) -> bool:
    """Whether tables of shards lie here that were never joined."""
    try:
        names = [each.name for each in folder.iterdir()]
    except OSError:
        return False
    return all(any(known.fullmatch(name) for name in names) for known in _SHARD_FILES)


def is_no_output(folder: Path) -> bool:
    """Whether a folder below the one that was named is to be entered."""
    return not is_output(folder)


def walk(
    root: Path,
    leave_out: Iterable[Path] = (),
    enter: Callable[[Path], bool] = is_no_output,
) -> Iterator[Path]:
    """Yield visible files; linked folders are followed, but none is entered twice.

    Folders below `root` that are to be left out are not entered at all, nor are those that `enter`
    refuses. A folder that cannot be read is an error: passing it over would lose images without a
    word.
    """
    for folder, files in _visits(Path(root), leave_out, enter):
        yield from (folder / each for each in files if not each.startswith("."))


def walk_folders(root: Path) -> Iterator[Path]:
    """Yield a folder and all those in which `walk` looks for files."""
    for folder, _ in _visits(Path(root), (), is_no_output):
        yield folder


def _visits(
    root: Path, leave_out: Iterable[Path], enter: Callable[[Path], bool]
) -> Iterator[tuple[Path, list[str]]]:
    """Folders, and the names of the files in each."""
    seen = {folder.resolve() for folder in leave_out} - {root.resolve()}
    # Links come after all real folders, so that what both lead to has its real name.
    starts = deque([root])
    while starts:
        start = starts.popleft()
        if start.resolve() in seen:
            continue
        for name, subfolders, files in os.walk(start, onerror=_refuse_folder):
            folder = Path(name)
            seen.add(folder.resolve())
            visible = [folder / each for each in sorted(subfolders) if not each.startswith(".")]
            new = [each for each in visible if each.resolve() not in seen and enter(each)]
            starts += [each for each in new if each.is_symlink()]
            subfolders[:] = [each.name for each in new if not each.is_symlink()]
            yield folder, files


def _refuse_folder(error: OSError) -> None:
    if isinstance(error, FileNotFoundError):
        return
    raise InputError(
        f"{error.filename}: this folder cannot be read ({error.strerror}). Allow it or move it."
    ) from error
