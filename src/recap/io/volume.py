"""Volumes: voxels read in bounded memory, as slices in a stated frame, and the way back.

A volume is cut along the body axis nearest to one of its own, without resampling. In every cut
the slices are shown as radiologists look at them:

    axial      slices from the feet up,     rows from front to back, columns from right to left
    coronal    slices from front to back,   rows from head to feet,  columns from right to left
    sagittal   slices from right to left,   rows from head to feet,  columns from front to back

No header is believed: nothing is set aside for voxels that the file has not yet delivered.
"""

import gzip
import io
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from recap.config import Axis
from recap.errors import InputError
from recap.io.decoding import BUDGET, one_line_errors
from recap.io.window import apply_window
from recap.types import FloatArray, Geometry, Identity, Image, Window

Affine = NDArray[np.float64]
# Where slices, rows and columns run to: R, A and S are the positive directions.
FRAMES = {"auto": "SPL", "axial": "SPL", "coronal": "PIL", "sagittal": "LIP"}
# By the body axis that the slices follow: right, anterior, superior.
_CUT_ACROSS: tuple[Axis, Axis, Axis] = ("sagittal", "coronal", "axial")
_DIRECTIONS = {"R": (0, 1), "L": (0, -1), "A": (1, 1), "P": (1, -1), "S": (2, 1), "I": (2, -1)}
# 1024 slices of 1024 × 1024: four gigabytes as float32.
MAX_VOXELS = 2**30
BYTES_PER_VOXEL = 8
"""As float32, and once more while its range is looked for."""
# What opening and unpacking a file that is none of ours may raise.
UNPACK_ERRORS = (OSError, EOFError, zlib.error)
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_VOXELS = 2**20


@dataclass(frozen=True, eq=False)
class Grid:
    """The position of a stack (slices, rows, columns) in its source's stored array (i, j, k).

    `axes` names the stored axis that slices, rows and columns run along, `flipped` whether they
    run against it. `affine_ras` takes stored (i, j, k, 1) to millimetres.
    """

    shape: tuple[int, int, int]
    affine_ras: Affine
    axes: tuple[int, int, int]
    flipped: tuple[bool, bool, bool]
    nifti_forms: Mapping[str, Any] | None = None
    """Fields by which a NIfTI source says its place, as they stand there; None for others."""

    def take(self, stored: NDArray[Any]) -> NDArray[Any]:
        """The stack (N, H, W) of a stored array: a view."""
        stack = stored.transpose(self.axes)
        return np.flip(stack, self._against)

    def restore(self, stack: NDArray[Any]) -> NDArray[Any]:
        """The stored array of a stack: the inverse of `take`."""
        turned = np.flip(stack, self._against)
        return turned.transpose(np.argsort(self.axes))

    @property
    def _against(self) -> tuple[int, ...]:
        return tuple(axis for axis in range(3) if self.flipped[axis])

    @property
    def stack_affine_ras(self) -> Affine:
        """Millimetres of (slice, row, column, 1)."""
        to_stored = np.zeros((4, 4))
        to_stored[3, 3] = 1
        for position, (axis, against) in enumerate(zip(self.axes, self.flipped, strict=True)):
            to_stored[axis, position] = -1 if against else 1
            to_stored[axis, 3] = self.shape[axis] - 1 if against else 0
        return self.affine_ras @ to_stored

    def slice_geometry(self, number: int) -> Geometry:
        """The geometry of one slice of the stack."""
        affine = self.stack_affine_ras
        affine[:, 3] += number * affine[:, 0]
        _, row_mm, column_mm = np.linalg.norm(affine[:3, :3], axis=0)
        return Geometry(
            spacing_mm=(float(row_mm), float(column_mm)),
            affine_ras=affine,
            orientation=orientation_of(affine),
        )


@dataclass(frozen=True, eq=False)
class Volume:
    """A volume in its own unit, as a stack (slices, rows, columns) of float32."""

    values: FloatArray
    grid: Grid
    source: str
    identity: Identity = field(default_factory=Identity)
    window: Window | None = None
    """What the file itself says should be shown."""

    def image(self, number: int, window: Window) -> Image:
        """One slice as an image."""
        return Image(
            apply_window(self.values[number], window),
            f"{self.source}[{number}]",
            self.grid.slice_geometry(number),
            replace(self.identity, instance=str(number)),
        )


def grid_for(shape: tuple[int, ...], affine_ras: Affine, axis: Axis, source: str) -> Grid:
    """The grid that cuts a stored array (i, j, k) along an axis of the body.

    What is one voxel thick is a single slice, whichever axis was asked for.
    """
    if len(shape) != 3 or min(shape) < 1:
        raise InputError(f"{source}: a volume has three axes, but this one has shape {shape}.")
    directions = affine_ras[:3, :3]
    if not _spans_space(affine_ras):
        raise InputError(
            f"{source}: its affine is not invertible, so it has no place in space. Set its "
            "orientation and spacing, or export it again."
        )
    nearest = nearest_axes(directions)
    if sorted(shape)[:2].count(1) == 1:
        axis = _CUT_ACROSS[nearest[shape.index(1)]]
    wanted = [_DIRECTIONS[letter] for letter in FRAMES[axis]]
    slices, rows, columns = (nearest.index(body) for body, _ in wanted)
    flipped = [
        bool(directions[body, stored] * sign < 0)
        for (body, sign), stored in zip(wanted, (slices, rows, columns), strict=True)
    ]
    return Grid(
        (shape[0], shape[1], shape[2]),
        affine_ras.astype(np.float64),
        (slices, rows, columns),
        (flipped[0], flipped[1], flipped[2]),
    )


def _spans_space(affine_ras: Affine) -> bool:
    """Tell whether the three steps are finite and point apart, however small they are."""
    if not np.isfinite(affine_ras).all():
        return False
    lengths = np.linalg.norm(affine_ras[:3, :3], axis=0)
    if not (np.isfinite(lengths).all() and lengths.min() > 0):
        return False
    return bool(abs(np.linalg.det(affine_ras[:3, :3] / lengths)) > 1e-6)


def nearest_axes(directions: Affine) -> list[int]:
    """The body axis (0 right, 1 anterior, 2 superior) nearest to each stored axis, all different.

    The steepest pair is matched first, so that an oblique volume never claims one axis twice.
    """
    slope = np.abs(directions / np.linalg.norm(directions, axis=0))
    found = [-1, -1, -1]
    for _ in range(3):
        body, stored = np.unravel_index(int(slope.argmax()), slope.shape)
        found[int(stored)] = int(body)
        slope[body, :] = slope[:, stored] = -1
    return found


def orientation_of(affine_ras: Affine) -> str:
    """Name where the three index axes run to, e.g. "SPL"."""
    directions = affine_ras[:3, :3]
    letters = ("RL", "AP", "SI")
    return "".join(
        letters[body][int(directions[body, stored] < 0)]
        for stored, body in enumerate(nearest_axes(directions))
    )


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
    if dtype.kind not in "iuf":
        kind = {"c": "complex numbers", "V": "colours or records"}.get(dtype.kind, str(dtype))
        raise InputError(
            f"{path}: its voxels are {kind}, not grey values. Save the magnitude or one "
            "channel as a volume of its own."
        )
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
        stored = np.frombuffer(packed, dtype)
        if scale != (1.0, 0.0):
            # Large integers and doubles lose digits only after the scaling.
            stored = stored.astype(np.float64) * scale[0] + scale[1]
        values[start:stop] = stored.astype(np.float32)
    # gzip compares its checksum only when asked for what follows the last byte.
    stream.read(1)
    _fill_gaps(values, source)
    return values.reshape(shape, order="F")


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
