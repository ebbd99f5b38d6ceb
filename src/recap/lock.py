"""One process at a time."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

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


@contextmanager
def alone(path: Path, written: Path | None = None) -> Iterator[None]:
    """Hold the lock that a file stands for, or refuse if another process has it.

    `written` is what only one process may write, by default the folder of that file. Where the
    system or the disk knows no such locks, the work goes on without.
    """
    with ExitStack() as held:
        # A run that ends removes its lock file. A lock on a removed file keeps nobody out: whoever
        # got hold of one opens the path again.
        while (
            os.fstat(held.enter_context(_held(path, written or path.parent)).fileno()).st_nlink == 0
        ):
            held.close()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def _held(path: Path, written: Path) -> Iterator[IO[str]]:
    with path.open("a") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{written} is being written by another run. Wait for its end, or choose "
                "another folder.",
                code="in_use",
                path=written,
            ) from error
        except (ImportError, OSError):
            pass
        yield file
