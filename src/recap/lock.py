"""One process at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from recap.errors import InputError


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that a file stands for; waits for whoever has it, makes the folder."""
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise InputError(
            f"Cannot write {path}: {error.strerror}. Choose a folder that you may write to."
        ) from error
    try:
        yield
    finally:
        lock.release()
