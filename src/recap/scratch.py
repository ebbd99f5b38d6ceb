"""Folders for what archives hold while it is looked at: images of patients, most of the time.

A run that is killed removes nothing. So each holds a lock on its folder, of which the system lets
go however the run ends, and the next run removes what nobody holds.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_PREFIX = "recap-unpacked-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder of this run alone, which goes with it."""
    _remove_abandoned()
    with ExitStack() as ours:
        folder = Path()
        # Before it is held, another run may take it for abandoned.
        while not (folder.name and folder.is_dir()):
            made = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
            folder = Path(ours.enter_context(made))
            with suppress(ImportError, OSError):  # not all systems and disks know such locks
                ours.enter_context(_held(folder, wait=True))
        yield folder


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(ImportError, OSError), _held(folder, wait=False):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _held(folder: Path, wait: bool) -> Iterator[None]:
    """Hold the lock on a folder of this user; an error if that cannot be."""
    import fcntl

    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(handle).st_uid != os.getuid():
            raise PermissionError(f"{folder} is another user's")
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
