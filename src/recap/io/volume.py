"""Volumes: a stack of slices in a stated frame, and the way back to the stored array.

A volume is cut along the body axis nearest to one of its own, without resampling. In every cut
the slices are shown as radiologists look at them:

    axial      slices from the feet up,     rows from front to back, columns from right to left
    coronal    slices from front to back,   rows from head to feet,  columns from right to left
    sagittal   slices from right to left,   rows from head to feet,  columns from front to back
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recap.config import Axis
from recap.errors import InputError
from recap.io.window import apply_window
from recap.types import FloatArray, Geometry, Identity, Image, Window

Affine = NDArray[np.float64]
# Where slices, rows and columns run to: R, A and S are the positive directions.
FRAMES = {"auto": "SPL", "axial": "SPL", "coronal": "PIL", "sagittal": "LIP"}
# By the body axis that the slices follow: right, anterior, superior.
_CUT_ACROSS: tuple[Axis, Axis, Axis] = ("sagittal", "coronal", "axial")
_DIRECTIONS = {"R": (0, 1), "L": (0, -1), "A": (1, 1), "P": (1, -1), "S": (2, 1), "I": (2, -1)}


@dataclass(frozen=True, eq=False)
class Grid:
    """How a stack (slices, rows, columns) lies in its source's stored array (i, j, k).

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
    wanted = [_DIRECTIONS[letter] for letter in _frame(shape, nearest, axis)]
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
    """Whether the three steps are finite and point apart, however small they are."""
    if not np.isfinite(affine_ras).all():
        return False
    lengths = np.linalg.norm(affine_ras[:3, :3], axis=0)
    if not (np.isfinite(lengths).all() and lengths.min() > 0):
        return False
    return bool(abs(np.linalg.det(affine_ras[:3, :3] / lengths)) > 1e-6)


def _frame(shape: tuple[int, ...], nearest: list[int], axis: Axis) -> str:
    if sorted(shape)[:2].count(1) != 1:
        return FRAMES[axis]
    return FRAMES[_CUT_ACROSS[nearest[shape.index(1)]]]


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
    """Where the three index axes run to, e.g. "SPL"."""
    directions = affine_ras[:3, :3]
    letters = ("RL", "AP", "SI")
    return "".join(
        letters[body][int(directions[body, stored] < 0)]
        for stored, body in enumerate(nearest_axes(directions))
    )
