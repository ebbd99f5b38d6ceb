"""Files that appear whole or not at all, and what is said where they cannot be written."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from recap.errors import InputError

_NO_PERMISSION = "no permission. Choose another place, or have its permissions changed."
_FULL = "the disk is full. Make room and run the same command again."
_REASONS = {
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.EROFS: "this disk can only be read. Choose a place on another one.",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: "the disk quota is used up. Make room and run the same command again.",
    errno.EISDIR: "this is a folder, but a file is needed. Name a file.",
    errno.EEXIST: "it exists already. Choose another name, or move it away.",
    errno.ENOENT: "there is no such file or folder, or none can be made there. Check the name, or "
    "choose another place.",
    errno.ENAMETOOLONG: "the name is too long. Choose a shorter one.",
}


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[IO[bytes]]:
    """A file that takes its name only when it is whole; makes the folder.

    `durable` also after a power cut, which may otherwise leave the name with nothing in it.
    """
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
        if durable:
            sync(path.parent)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {reason_of(error, path)}") from error
    finally:
        # After a good rename it is gone already. A disk that can only be read, or a file where the
        # folder should be, refuse to remove even what is not there.
        with suppress(OSError):
            partial.unlink()


def write_atomic(path: Path, data: bytes | str, durable: bool = False) -> None:
    """Write bytes, or text as UTF-8."""
    with replacing(path, durable) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {reason_of(error, path)}") from error


def sync(path: Path) -> None:
    """Put one file, or the list of names in one folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_file(path: Path) -> None:
    """Refuse a file that could not be written, before the work rather than after it."""
    if path.is_dir():
        raise InputError(f"Cannot write {path}: {_REASONS[errno.EISDIR]}")
    _check_above(path)


def check_place(path: Path) -> None:
    """Refuse a folder for which there is no room in the tree; makes nothing."""
    if path.is_symlink() and not path.exists():
        raise InputError(f"Cannot write {path}: {_in_the_way(path)}")
    _check_above(path)


def _check_above(path: Path) -> None:
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not above.is_dir():
        raise InputError(f"Cannot write {path}: {_in_the_way(above)}")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"Cannot write {path}: {_NO_PERMISSION}")


def in_words(error: OSError) -> str:
    """Which file the system refused, why, and what to do; its own words where none are better."""
    if isinstance(error.filename, str | bytes):
        path = Path(os.fsdecode(error.filename))
        return f"Cannot use {path}: {reason_of(error, path)}"
    # Writing to an open file names none; a refused connection is no matter of the disk.
    return f"Cannot write: {_FULL}" if error.errno == errno.ENOSPC else str(error)


def reason_of(error: OSError, path: Path) -> str:
    """Why the system refused a file or folder, and what to do."""
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        lying = [place for place in (path, *path.parents) if os.path.lexists(place)]
        if lying and not lying[0].is_dir():
            return _in_the_way(lying[0])
    own = f"{error.strerror or error}. Check the name, and the disk that it is on."
    return _REASONS.get(error.errno or 0, own)


def _in_the_way(file: Path) -> str:
    if file.is_symlink() and not file.exists():
        return f"{file} is a link that leads nowhere. Choose another place, or remove the link."
    return (
        f"{file} is a file, but a folder is needed. Choose another place, or move that file away."
    )
