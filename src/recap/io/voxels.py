"""The voxels of a volume file, as float32 and with bounded memory.

No header is believed: nothing is set aside for voxels that the file has not yet delivered.
"""

import gzip
import io
import math
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from recap.errors import InputError
from recap.io.budget import BUDGET
from recap.io.reasons import one_line_errors
from recap.types import FloatArray

# 1024 slices of 1024 × 1024: four gigabytes as float32.
MAX_VOXELS = 2**30
BYTES_PER_VOXEL = 8
"""As float32, and once more while its range is looked for."""
# What opening and unpacking a file that is none of ours may raise.
UNPACK_ERRORS = (OSError, EOFError, zlib.error)
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_VOXELS = 2**20


@contextmanager
def careful(path: Path) -> Iterator[None]:
    """Turn whatever a parser, zlib or numpy says about a damaged volume into one `InputError`."""
    # Nonsense in a header makes numpy warn before it makes anything fail.
    with one_line_errors(path, "volume"), np.errstate(all="ignore"):
        yield


@contextmanager
def open_unpacked(path: Path) -> Iterator[IO[bytes]]:
    """A file's bytes, unpacked if its content is gzip."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: this is not a file. Name the volume file itself.")
    with path.open("rb") as stream:
        packed = stream.read(2) == _GZIP_MAGIC
        stream.seek(0)
        if packed:
            with gzip.GzipFile(fileobj=stream, mode="rb") as unpacked:
                yield cast(IO[bytes], unpacked)
        else:
            yield stream


def check_one_volume(outside: list[int], shape: tuple[int, ...], path: Path) -> None:
    """Refuse a file of several volumes, given the lengths of its axes outside space."""
    if len(outside) > 1:
        raise InputError(
            f"{path}: the file has {len(shape)} axes (shape {shape}), not three. Save the volume "
            "to look at as a file of its own."
        )
    if outside and outside[0] > 1:
        raise InputError(
            f"{path}: the file holds {outside[0]} volumes (shape {shape}), of a series in time or "
            "of several diffusion directions. Save the one to look at as a file of its own."
        )


def seek_voxels(
    stream: IO[bytes], start: int, shape: tuple[int, ...], dtype: np.dtype[Any], path: Path
) -> None:
    """Move to the first voxel, after checking that what the header declares can be read."""
    _check_shape(shape, path)
    _check_type(dtype, path)
    # A packed file tells how much it holds only by being unpacked.
    if isinstance(stream, io.BufferedReader):
        held, wanted = path.stat().st_size, start + math.prod(shape) * dtype.itemsize
        if held < wanted:
            raise InputError(
                f"{path}: the file ends too early: it has {held} bytes, but its voxels need "
                f"{wanted}. Copy or export it again."
            )
    stream.seek(start)


def _check_shape(shape: tuple[int, ...], path: Path) -> None:
    if min(shape) < 1:
        raise InputError(f"{path}: the volume is empty (shape {shape}). Export it again.")
    if math.prod(shape) > MAX_VOXELS:
        raise InputError(
            f"{path}: the volume has more than {MAX_VOXELS // 2**20} million voxels (shape "
            f"{shape}), the most that is read. Crop it or resample it to larger voxels.",
            code="too_large",
        )


def _check_type(dtype: np.dtype[Any], path: Path) -> None:
    if dtype.kind not in "iuf":
        kind = {"c": "complex numbers", "V": "colours or records"}.get(dtype.kind, str(dtype))
        raise InputError(
            f"{path}: its voxels are {kind}, not grey values. Save the magnitude or one "
            "channel as a volume of its own."
        )


def room_for_voxels(shape: tuple[int, ...], source: str) -> AbstractContextManager[None]:
    """Room in the budget for decoding for a volume of this shape."""
    return BUDGET.room(math.prod(shape) * BYTES_PER_VOXEL, source)


def read_voxels(
    stream: IO[bytes],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    source: str,
    scale: tuple[float, float] = (1.0, 0.0),
) -> FloatArray:
    """The next voxels of a stream, first axis fastest, as stored × scale[0] + scale[1].

    Ask for them with `seek_voxels`, which does the checking.
    """
    count = math.prod(shape)
    values = np.empty(min(count, _CHUNK_VOXELS), np.float32)
    for start in range(0, count, _CHUNK_VOXELS):
        stop = min(start + _CHUNK_VOXELS, count)
        packed = stream.read((stop - start) * dtype.itemsize)
        if len(packed) < (stop - start) * dtype.itemsize:
            raise InputError(
                f"{source}: the file ends after {start + len(packed) // dtype.itemsize} of its "
                f"{count} voxels. Copy or export it again."
            )
        if stop > values.size:
            # Nobody else holds the array yet, so growing it in place is safe.
            values.resize(min(count, 2 * values.size), refcheck=False)
        values[start:stop] = _scaled(np.frombuffer(packed, dtype), scale)
    # gzip compares its checksum only when asked for what follows the last byte.
    stream.read(1)
    _fill_gaps(values, source)
    return values.reshape(shape, order="F")


def _scaled(stored: NDArray[Any], scale: tuple[float, float]) -> FloatArray:
    """Large integers and doubles lose digits only after the scaling."""
    if scale == (1.0, 0.0):
        return stored.astype(np.float32)
    return (stored.astype(np.float64) * scale[0] + scale[1]).astype(np.float32)


def _fill_gaps(values: FloatArray, source: str) -> None:
    """Give voxels without a finite value the lowest finite one, in place."""
    chunks = [values[i : i + _CHUNK_VOXELS] for i in range(0, values.size, _CHUNK_VOXELS)]
    gaps = []
    lowest = np.inf
    for chunk in chunks:
        finite = np.isfinite(chunk)
        if finite.all():
            lowest = min(lowest, chunk.min())
            continue
        gaps.append(chunk)
        lowest = min(lowest, chunk[finite].min(initial=np.inf))
    if not np.isfinite(lowest):
        raise InputError(f"{source}: not one voxel is a finite number. Export it again.")
    for chunk in gaps:
        chunk[~np.isfinite(chunk)] = lowest
