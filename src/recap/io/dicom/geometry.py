"""The place of DICOM slices: planes in the patient, and the grid that a stack of them makes.

DICOM counts millimetres towards left, posterior and superior (LPS); recap towards right, anterior
and superior (RAS).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recap.io.dicom.header import Tags, number, numbers, text
from recap.io.volume import Affine, Grid, orientation_of
from recap.types import Geometry

Vector = NDArray[np.float64]
LPS_TO_RAS = np.array([-1.0, -1.0, 1.0])
# Direction cosines are written with few digits.
_NOT_A_FRAME = 0.02
# How far, in gaps, a slice may lie from where an even stack has it.
_UNEVEN = 0.25
SAME_PLACE_MM = 0.01
# Nothing of a patient is smaller or farther away; damaged numbers often are.
_SMALLEST_MM, _LARGEST_MM = 1e-6, 1e6
_MOST_MAGNIFIED = 100


@dataclass(frozen=True, eq=False)
class Plane:
    """A slice in the patient, in RAS: its first pixel, and the steps from pixel to pixel."""

    origin: Vector
    column_step: Vector
    """From one column to the next, along a row."""
    row_step: Vector
    thickness_mm: float

    @property
    def normal(self) -> Vector:
        """The direction in which slices follow each other: for axial slices, from the feet up."""
        upright = np.cross(self.column_step, self.row_step)
        return upright / np.linalg.norm(upright)

    @property
    def place_mm(self) -> float:
        """The position of the slice along its normal."""
        return float(self.normal @ self.origin)

    def geometry(self) -> Geometry:
        """The plane as that of a single image."""
        affine = np.eye(4)
        affine[:3] = np.stack(
            [self.normal * self.thickness_mm, self.row_step, self.column_step, self.origin], axis=1
        )
        return Geometry(
            spacing_mm=(_length(self.row_step), _length(self.column_step)),
            affine_ras=affine,
            orientation=orientation_of(affine),
        )


def spacing_of(tags: Tags) -> tuple[float, float] | None:
    """Millimetres from row to row and from column to column in the patient, where the file says.

    The beam spreads until it is on the detector, or on the film that was scanned: a spacing there
    is the patient's only with the magnification.
    """
    patient, detector = _pair(tags, "PixelSpacing"), _pair(tags, "ImagerPixelSpacing")
    # Equal ones are both the detector's, unless they were calibrated (PS3.3 10.7.1.3).
    if patient and (patient != detector or text(tags, "PixelSpacingCalibrationType")):
        return patient
    factor = number(tags, "EstimatedRadiographicMagnificationFactor") or 0.0
    if detector and 1 <= factor <= _MOST_MAGNIFIED:
        return detector[0] / factor, detector[1] / factor
    return None


def _pair(tags: Tags, keyword: str) -> tuple[float, float] | None:
    found = numbers(tags, keyword)
    if len(found) != 2 or min(found) < _SMALLEST_MM or max(found) > _LARGEST_MM:
        return None
    return found[0], found[1]


def plane_of(tags: Tags) -> Plane | None:
    """The plane of a slice, where the file says it completely and without contradiction."""
    origin, cosines = (
        numbers(tags, "ImagePositionPatient"),
        numbers(tags, "ImageOrientationPatient"),
    )
    spacing = numbers(tags, "PixelSpacing")
    if len(origin) != 3 or len(cosines) != 6 or len(spacing) != 2:
        return None
    if min(spacing) < _SMALLEST_MM or max(map(abs, (*origin, *spacing))) > _LARGEST_MM:
        return None
    along_row, along_column = np.array(cosines[:3]), np.array(cosines[3:])
    lengths = np.array([_length(along_row), _length(along_column)])
    if (np.abs(lengths - 1) > _NOT_A_FRAME).any() or abs(along_row @ along_column) > _NOT_A_FRAME:
        return None
    gap = abs(number(tags, "SpacingBetweenSlices") or number(tags, "SliceThickness") or 1.0)
    return Plane(
        origin=np.array(origin) * LPS_TO_RAS,
        column_step=along_row / lengths[0] * spacing[1] * LPS_TO_RAS,
        row_step=along_column / lengths[1] * spacing[0] * LPS_TO_RAS,
        thickness_mm=gap if _SMALLEST_MM <= gap <= _LARGEST_MM else 1.0,
    )


def geometry_of(tags: Tags) -> Geometry:
    """Read from the tags of a frame where it lies."""
    plane = plane_of(tags)
    return plane.geometry() if plane else Geometry(spacing_mm=spacing_of(tags))


def same_frame(planes: Sequence[Plane]) -> bool:
    """Tell whether all slices have the same orientation and spacing."""
    first = planes[0]
    return all(
        np.allclose(plane.column_step, first.column_step, rtol=0, atol=1e-3)
        and np.allclose(plane.row_step, first.row_step, rtol=0, atol=1e-3)
        for plane in planes
    )


def why_no_grid(planes: Sequence[Plane]) -> str:
    """Explain why slices, sorted by place, are no volume; empty if they are one."""
    if len(planes) < 2:
        return "there is only one slice"
    if not same_frame(planes):
        return "the slices differ in orientation or spacing"
    places = [plane.place_mm for plane in planes]
    if min(np.diff(places)) < SAME_PLACE_MM:
        return "several slices lie at the same place"
    origins = np.array([plane.origin for plane in planes])
    even = origins[0] + np.arange(len(planes))[:, None] * _slice_step(planes)
    gap = (places[-1] - places[0]) / (len(planes) - 1)
    if np.linalg.norm(origins - even, axis=1).max() > _UNEVEN * gap:
        return "the gaps between the slices are uneven, or a slice is missing"
    return ""


def stored_affine(planes: Sequence[Plane]) -> Affine:
    """Millimetres of (column, row, slice, 1) in a stack of slices."""
    first = planes[0]
    affine = np.eye(4)
    affine[:3] = np.stack(
        [first.column_step, first.row_step, _slice_step(planes), first.origin], axis=1
    )
    return affine


def as_acquired(planes: Sequence[Plane], size_hw: tuple[int, int]) -> Grid:
    """The grid of a stack whose slices, rows and columns are those of the files."""
    shape = (size_hw[1], size_hw[0], len(planes))
    return Grid(shape, stored_affine(planes), axes=(2, 1, 0), flipped=(False, False, False))


def _slice_step(planes: Sequence[Plane]) -> Vector:
    return (planes[-1].origin - planes[0].origin) / (len(planes) - 1)


def _length(vector: Vector) -> float:
    return float(np.linalg.norm(vector))
