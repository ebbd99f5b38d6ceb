"""Files that appear whole or not at all, locks on them, scratch folders, and files with a token.

All that is said where a file or folder cannot be written is said here, too.
"""

import errno
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

from recap.errors import InputError, RecapError, SettingsError

_NO_PERMISSION = "no permission. Choose another place, or have its permissions changed."
_FULL = "the disk is full. Make room and run the same command again."
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_PATIENCE_S = 0.1
"""Whoever has a lock may be about to let go of it."""
_SCRATCH = "recap-unpacked-"
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
        raise InputError(f"Cannot write {path}: {reason_of(error, path)}", path=path) from error
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


def error_message(error: OSError) -> str:
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


@contextmanager
def locked(path: Path, busy: RecapError | None = None) -> Iterator[None]:
    """Hold the lock that a file stands for; makes its folder.

    Waits for whoever has it or, with `busy`, raises that. The system lets go when the process ends,
    however it ends. Where the system or the disk knows no locks, the work goes on without.
    """
    patience_s = -1 if busy is None else _PATIENCE_S
    lock = FileLock(path, timeout=patience_s, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(poll_interval=_PATIENCE_S / 4)
        while not path.exists():  # whoever had it removed it: such a lock keeps nobody out
            lock.release()
            lock.acquire(poll_interval=_PATIENCE_S / 4)
    except Timeout as error:
        raise busy or error from error
    except NotImplementedError:  # how filelock tells of a disk without locks
        pass
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise InputError(
                f"Cannot write {path}: {error.strerror}. Choose a folder that you may write to.",
                path=path,
            ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def alone(path: Path, written: Path | None = None) -> Iterator[None]:
    """Hold a lock whose file goes with it, or refuse if another process has it.

    `written` is what only one process may write, by default the folder of that file.
    """
    place = written or path.parent
    busy = InputError(
        f"{place} is being written by another run.",
        code="in_use",
        path=place,
        remedy="Wait for its end, or choose another folder.",
    )
    with locked(path, busy):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder for what archives hold while it is looked at; it goes with the run.

    These are images of patients, most of the time, and a run that is killed removes nothing. So
    each run holds a lock in its folder, and the next one removes what nobody holds.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with suppress(OSError, RecapError):
            if _is_ours(left):
                with locked(left / "lock", InputError("in use", code="in_use")):
                    shutil.rmtree(left, ignore_errors=True)
    with ExitStack() as ours:
        made, folder = None, Path()
        # Before it is held, another run may take it for abandoned; locking would make it anew.
        while made is None or folder.stat().st_ino != made:
            new = tempfile.TemporaryDirectory(prefix=_SCRATCH, ignore_cleanup_errors=True)
            folder = Path(ours.enter_context(new))
            made = folder.stat().st_ino if folder.is_dir() else None
            ours.enter_context(locked(folder / "lock"))
        (folder / "files").mkdir()
        yield folder / "files"


def _is_ours(folder: Path) -> bool:
    """Tell a folder of this user from a link, or another's folder, that bears its name."""
    return folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid()


def read_token(path: Path, shortest: int = 1, remedy: str = "Copy it into the file again.") -> str:
    """Read a bearer token, the only line of a file; errors never quote it.

    On a command line, every user of the machine could see it.
    """
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"Cannot read the token file {path}: {error}.", path=path) from error
    if len(token) < shortest or not re.fullmatch(r"[!-~]+", token):
        least = f" of at least {shortest}" if shortest > 1 else " of"
        raise SettingsError(
            f"{path}: a token is one line{least} letters, digits or signs, without spaces; this "
            f"file has {len(token)} characters in {len(token.splitlines())} lines.",
            path=path,
            remedy=remedy,
        )
    return token
