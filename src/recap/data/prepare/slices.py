"""Axial slices of a volume and its label volume, numbered as they are stored in the file.

The published names count slices in the stored array, whichever way it runs; the pixels are shown
as radiologists look at them.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recap.data.prepare.plan import Split
from recap.errors import InputError
from recap.io.nifti import read_nifti
from recap.io.volume import Grid
from recap.types import FloatArray

Labels = NDArray[np.uint8]


class Cut(NamedTuple):
    """One slice to write."""

    number: int
    split: Split
    abnormal: bool


class Scan:
    """An image volume with its labels laid over it."""

    def __init__(self, values: FloatArray, labels: Labels, grid: Grid) -> None:
        self.values, self._labels, self._grid = values, labels, grid

    def pixels(self, stored: int) -> FloatArray:
        """The grey values of a slice, by its number in the stored array."""
        return self.values[_place(self._grid, stored)]

    def labels(self, stored: int) -> Labels:
        """The labels of a slice, by its number in the stored array."""
        return self._labels[_place(self._grid, stored)]


def read_scan(image: Path, labels: Path) -> Scan:
    """Read an image volume and its labels.

    Headers of public label files sometimes disagree with their image's; as everyone does, the
    arrays are laid over each other as they are stored.
    """
    stored, label_shape = _read_labels(labels)
    volume = read_nifti(image, "axial")
    if label_shape != volume.grid.shape:
        raise InputError(
            f"{labels}: has the shape {label_shape}, but {image.name} has {volume.grid.shape}. "
            "Download both again."
        )
    return Scan(volume.values, volume.grid.take(stored), volume.grid)


def labels_by_slice(path: Path) -> list[list[int]]:
    """The labels above zero that occur in each slice, in the stored order."""
    volume = read_nifti(path, "axial")
    count = len(volume.values)
    found = (np.unique(volume.values[_place(volume.grid, stored)]) for stored in range(count))
    return [[round(float(label)) for label in labels if label > 0] for labels in found]


def _read_labels(path: Path) -> tuple[Labels, tuple[int, int, int]]:
    """As stored; small integers, so that the large floats are gone before the image is read."""
    volume = read_nifti(path, "axial")
    whole: NDArray[Any] = np.clip(np.rint(volume.values), 0, 255).astype(np.uint8)
    return volume.grid.restore(whole), volume.grid.shape


def _place(grid: Grid, stored: int) -> int:
    """Where a slice of the stored array stands in the stack."""
    count = grid.shape[grid.axes[0]]
    if not 0 <= stored < count:
        raise InputError(f"there is no slice {stored} in a volume of {count} slices.")
    return count - 1 - stored if grid.flipped[0] else stored
