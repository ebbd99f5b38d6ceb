"""Archives from elsewhere, unpacked so that they can write nowhere else and not without bound."""

import errno
import gzip
import lzma
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from recap.errors import InputError
from recap.progress import Progress, silent

LIMIT_BYTES = 200 * 1024**3
LIMIT_FILES = 2_000_000
_BLOCK_BYTES = 1024**2
DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    gzip.BadGzipFile,
    lzma.LZMAError,
    EOFError,
    ValueError,
)
"""How the readers of archives answer damaged ones."""

Place = Callable[[PurePosixPath], PurePosixPath | None]
"""Where a file of the archive goes inside the folder; None leaves it out."""


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    is_plain: bool
    """Neither a link nor a device nor encrypted."""
    open: Callable[[], IO[bytes] | None]


def unpack_archive(
    archive: Path,
    folder: Path,
    place: Place = lambda path: path,
    *,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress = silent,
) -> list[Path]:
    """Unpack the files of a zip or tar archive that `place` has a place for.

    Names that lead out of the folder, links, devices, encrypted files and more than `limit_bytes`
    are refused before anything is written.
    """
    with _damage_reported(archive), _members(archive) as members:
        chosen = _choose(archive, members, place, limit_bytes)
        _check_room(folder, sum(member.size for member, _ in chosen))
        for index, (member, inside) in enumerate(chosen):
            progress("unpack", index, len(chosen), inside.name)
            _write(member, folder / inside, archive)
    progress("unpack", len(chosen), len(chosen), "")
    return [folder / inside for _, inside in chosen]


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[_Member]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            yield _zip_members(file)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as file:
            yield _tar_members(file)
    else:
        raise InputError(
            f"{archive}: neither a zip nor a tar archive. Download it again.", path=archive
        )


def _zip_members(file: zipfile.ZipFile) -> Iterator[_Member]:
    for info in file.infolist():
        kind = stat.S_IFMT(info.external_attr >> 16)
        encrypted = bool(info.flag_bits & 1)
        is_plain = kind in (0, stat.S_IFREG) and not encrypted
        if not info.is_dir():
            yield _Member(info.filename, info.file_size, is_plain, partial(file.open, info))


def _tar_members(file: tarfile.TarFile) -> Iterator[_Member]:
    for info in file:
        # A sparse file may claim any size without having it.
        is_plain = info.isreg() and not info.issparse()
        if not info.isdir():
            yield _Member(info.name, info.size, is_plain, partial(file.extractfile, info))


def _choose(
    archive: Path, members: Iterator[_Member], place: Place, limit_bytes: int
) -> list[tuple[_Member, PurePosixPath]]:
    chosen: dict[PurePosixPath, _Member] = {}
    total = 0
    for number, member in enumerate(members):
        # Some programs write \\ between folders; elsewhere c: would be a drive.
        path = PurePosixPath(member.name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or re.match("[A-Za-z]:", member.name):
            raise _refusal(archive, member, "leads out of the folder")
        if not member.is_plain:
            raise _refusal(archive, member, "is a link, a device or encrypted")
        # Bytes that are left out count too: a compressed tar must be read through.
        total += member.size
        if total > limit_bytes or number >= LIMIT_FILES:
            raise InputError(
                f"{archive}: unpacks to more than {limit_bytes} bytes or {LIMIT_FILES} files. "
                "This is not the archive it should be.",
                code="too_large",
                path=archive,
            )
        inside = place(path)
        if inside is not None and chosen.setdefault(inside, member) is not member:
            raise _refusal(archive, member, "is there twice")
    return [(member, inside) for inside, member in chosen.items()]


def _refusal(archive: Path, member: _Member, reason: str) -> InputError:
    return InputError(
        f"{archive}: its file {member.name[:200]!r} {reason}. Nothing was unpacked.", path=archive
    )


def _check_room(folder: Path, need: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if need > free:
        raise InputError(
            f"{folder}: {need} bytes are to be unpacked, but only {free} are free. "
            "Choose a larger disk.",
            path=folder,
        ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _write(member: _Member, target: Path, archive: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source = member.open()
    if source is None:
        raise _refusal(archive, member, "has no content")
    with source, target.open("wb") as stream:
        left = member.size
        while left and (block := source.read(min(_BLOCK_BYTES, left))):
            left -= len(block)
            stream.write(block)
        source.read(1)  # at its end a zip checks the sum
    if left:
        raise InputError(
            f"{archive}: ends inside {member.name[:200]!r}. Download it again.", path=archive
        )


@contextmanager
def _damage_reported(archive: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        raise InputError(
            f"{archive}: the archive is damaged ({error}). Download it again.", path=archive
        ) from error
    except OSError as error:  # also the answer to some damage: bz2, offsets before the start
        raise InputError(f"{archive}: cannot be unpacked ({error}).", path=archive) from error
    except NotImplementedError as error:
        raise InputError(
            f"{archive}: packed in a way that cannot be read ({error}).", path=archive
        ) from error
