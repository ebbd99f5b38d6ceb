"""The folder of a saved detector: a `Bundle` is all that opens what lies in one.

Bundles come from strangers. What is read are regular files inside the folder, of a size that is
known and allowed before they are read, and never through a link. The way to the folder itself may
have links: that is the user's own word.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import islice
from pathlib import Path

from recap.errors import BundleError

CARD, TENSORS = "bundle.json", "head.safetensors"
THUMBNAILS = "support"
"""Folder of small pictures of support images, by their number in the card; seldom there."""
COPY_AGAIN = "Copy the bundle again."
_CARD_BYTES, _THUMBNAIL_BYTES, _NUMBERS_BYTES = 2**25, 2**20, 2**34
_MOST_FILES, _DEEPEST_FOLDER = 100_000, 8
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
}


class Bundle:
    """A folder whose files are opened safely. It is no path, so nothing else can open them."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def __str__(self) -> str:
        return str(self._folder)

    def named(self, name: str) -> str:
        """Spell out the path of a file in the bundle, for people."""
        return str(self._folder / name)

    def has(self, name: str) -> bool:
        """Tell whether anything lies under a name; it need not be fit to be opened."""
        return os.path.lexists(self._folder / name)

    @contextmanager
    def open(self, name: str) -> Iterator[BufferedReader]:
        """Open a regular file by its path in the bundle, with `/` between folders.

        Every folder on the way is opened within the one above it and without following links, and
        the size is that of the opened file: nothing can be exchanged in between.
        """
        *folders, last = name.split("/")
        folder = self._enter(folders)
        try:
            # Without O_NONBLOCK, opening a named pipe would wait until somebody writes into it.
            file = _open_within(folder, last, os.O_NONBLOCK, self.named(name), "a file")
        finally:
            os.close(folder)
        try:
            _check_file(os.fstat(file), name, self.named(name))
        except BundleError:
            os.close(file)
            raise
        with os.fdopen(file, "rb") as stream:
            yield stream

    def read(self, name: str) -> bytes:
        """Read a whole file, of at most half of the memory: who reads it holds it twice."""
        with self.open(name) as stream:
            size, memory = os.fstat(stream.fileno()).st_size, _memory_bytes()
            if 2 * size > memory:
                raise BundleError(
                    f"{self.named(name)} has {size} bytes, too many for a machine with {memory} "
                    "bytes of memory. Use a larger one."
                )
            return stream.read(size)

    def files(self, folder: str = "") -> list[str]:
        """List all files of the bundle, or of a folder in it, by their paths in the bundle.

        A link, a pipe or a device among them is an error, wherever it lies.
        """
        found = sorted(islice(self._files([folder] if folder else []), _MOST_FILES + 1))
        if len(found) > _MOST_FILES:
            raise BundleError(f"{self} holds more than {_MOST_FILES} files. {COPY_AGAIN}")
        return found

    def copy_to(self, target: Path, without: frozenset[str] = frozenset()) -> None:
        """Copy all files but some to another folder."""
        for name in self.files():
            if name in without:
                continue
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            with self.open(name) as source, place.open("xb") as copy:
                shutil.copyfileobj(source, copy)

    def thumbnail(self, number: int) -> bytes | None:
        """Read the small picture (PNG) of a support image, if the bundle has it."""
        name = thumbnail_name(number)
        return self.read(name) if self.has(name) else None

    def put_folder(self, made: Path, name: str, old: Path) -> None:
        """Move a folder that was made beside it into the bundle; what lies there goes to `old`."""
        if self.has(name):
            (self._folder / name).rename(old)
        made.rename(self._folder / name)

    def _enter(self, folders: list[str]) -> int:
        """Open a folder of the bundle; the caller closes the handle."""
        handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        for depth, folder in enumerate(folders, 1):
            path = self.named("/".join(folders[:depth]))
            try:
                below = _open_within(handle, folder, os.O_DIRECTORY, path, "a folder")
            finally:
                os.close(handle)
            handle = below
        return handle

    def _files(self, folders: list[str]) -> Iterator[str]:
        if len(folders) > _DEEPEST_FOLDER:
            raise BundleError(f"{self} holds folders within folders, too deep. {COPY_AGAIN}")
        handle = self._enter(folders)
        try:
            with os.scandir(handle) as entries:
                states = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
        finally:
            os.close(handle)
        for last, state in states.items():
            name = "/".join([*folders, last])
            if stat.S_ISDIR(state.st_mode):
                yield from self._files([*folders, last])
            else:
                _check_file(state, name, self.named(name))
                yield name


def thumbnail_name(number: int) -> str:
    """Name the file in a bundle that holds the small picture of a support image."""
    return f"{THUMBNAILS}/{number:06d}.png"


def _open_within(folder: int, name: str, flags: int, path: str, wanted: str) -> int:
    if name in ("", ".", ".."):
        raise BundleError(f"{path} is no file of a bundle.")
    flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except (FileNotFoundError, PermissionError) as error:
        error.filename = path
        raise
    except OSError as error:  # links and sockets; pipes and devices open, and are refused then
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
        raise BundleError(_another_kind(path, state, wanted)) from error


def _check_file(state: os.stat_result, name: str, path: str) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise BundleError(_another_kind(path, state, "a file"))
    most = _NUMBERS_BYTES
    if name == CARD:
        most = _CARD_BYTES
    elif name.startswith(f"{THUMBNAILS}/"):
        most = _THUMBNAIL_BYTES
    if state.st_size > most:
        raise BundleError(
            f"{path} has {state.st_size} bytes, but this file has at most {most}. {COPY_AGAIN}"
        )


def _another_kind(path: str, state: os.stat_result, wanted: str) -> str:
    kind = _KINDS.get(stat.S_IFMT(state.st_mode), "a device")
    return (
        f"{path} is {kind}, but {wanted} is needed: a bundle holds plain files and folders, as it "
        "may come from somebody else. Put the file itself there, or remove it."
    )


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
