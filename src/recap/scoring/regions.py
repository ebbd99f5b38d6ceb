"""Regions: connected parts of a map that reach a level, with their place, size and strength."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recap.data.folder import list_masks, pair_masks
from recap.errors import InputError
from recap.io import Case, read_mask
from recap.types import BoolArray, FloatArray, Region

# Pixels that touch at a corner belong together, as lesions seen through a grid do.
_TOUCHING = np.ones((3, 3), bool)


def find_regions(
    map: FloatArray,
    level: float,
    spacing_mm: tuple[float, float] | None = None,
    ignore: BoolArray | None = None,
    px_per_value: float = 1.0,
) -> list[Region]:
    """Find the regions of a map (H, W), or of each of a stack (N, H, W), the strongest first.

    Values that are NaN were not looked at and belong to none, as those that `ignore` marks.
    `spacing_mm` is a pixel's height and width; a value of the map covers `px_per_value` pixels
    a side, and areas, boxes and places are in pixels.
    """
    stack = map[None] if map.ndim == 2 else map
    marked = None if ignore is None else np.broadcast_to(ignore, stack.shape)
    found: list[Region] = []
    for number, plane in enumerate(stack):
        above = reaches(plane, level)
        if marked is not None:
            above &= ~marked[number]
        found += _regions_of(plane, above, number, px_per_value, spacing_mm)
    return sorted(found, key=lambda region: -region.peak)


def reaches(map: FloatArray, level: float) -> BoolArray:
    """Where a map is at least at the level; NaN never is.

    A calibrated level lies a hair above a value of some map. As a plain number NumPy would round
    it to the map's own float32, which is that value again.
    """
    above: BoolArray = map >= np.float64(level)
    return above


def case_regions(
    case: Case,
    map: FloatArray,
    level: float,
    ignore: BoolArray | None = None,
    px_per_value: float = 1.0,
) -> list[Region]:
    """The regions of a case's map, with the pixel size that its images tell.

    An ignore mask (H, W) holds for all slices or frames; that of a slide may have any resolution.
    """
    if ignore is not None:
        ignore = _fitted(ignore, map.shape[-2:], case)
    if case.kind != "frames":
        return find_regions(map, level, _spacing_mm(case), ignore, px_per_value)
    # Frames of one file may differ in it; to ask for it is to decode them.
    found = find_regions(map, level, None, ignore, px_per_value)
    spacings = {number: _spacing_mm(case, number) for number in {each.image for each in found}}
    return [replace(each, area_mm2=_area_mm2(each.area_px, spacings[each.image])) for each in found]


def _spacing_mm(case: Case, number: int = 0) -> tuple[float, float] | None:
    geometry = case.images[number].geometry
    spacing = geometry.spacing_mm
    if spacing is None or case.kind != "slide":
        return spacing
    # A tile's pixels are coarser than the slide's, in which its regions are told.
    return spacing[0] / geometry.source_px_per_px, spacing[1] / geometry.source_px_per_px


def _area_mm2(area_px: float, spacing_mm: tuple[float, float] | None) -> float | None:
    return None if spacing_mm is None else area_px * spacing_mm[0] * spacing_mm[1]


@dataclass(frozen=True)
class IgnoreMasks:
    """A folder of masks named like the images; what they mark is in no region.

    Scores, p-values and decisions stay what they are: those do not come from pixels of the map.
    """

    folder: Path
    files: dict[Path, Path]
    unused: tuple[Path, ...] = ()
    """Masks that have no image's name."""

    def of(self, image: Path) -> BoolArray | None:
        """The mask of an image, or None."""
        file = self.files.get(image)
        return None if file is None else read_mask(file)


def ignore_masks(folder: Path, images: Sequence[Path]) -> IgnoreMasks:
    """Match masks to images by name; images without one are looked at whole."""
    pairs = pair_masks(images, list_masks(folder))
    for image, masks in pairs.ambiguous.items():
        names = ", ".join(mask.name for mask in masks)
        raise InputError(
            f"{image}: more than one image or mask has its name ({names}). Merge masks of one "
            "image into one picture; give images names of their own."
        )
    if not pairs.matched:
        raise InputError(
            f"{folder}: no mask has the name of an image. A mask has its image's name, or that "
            "name and _mask.",
            path=folder,
        )
    return IgnoreMasks(folder, pairs.matched, tuple(pairs.orphans))


def regions_table(regions: Iterable[Region]) -> str:
    """Regions as CSV, one line each, numbered from 1."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["region", *REGION_COLUMNS])
    for number, region in enumerate(regions, start=1):
        values = [number, *_cells(region)]
        writer.writerow(f"{v:.8g}" if isinstance(v, float) else v for v in values)
    return text.getvalue()


REGION_COLUMNS = [
    *("image", "area_px", "area_mm2", "left_px", "top_px", "right_px", "bottom_px"),
    *("centroid_x_px", "centroid_y_px", "peak", "peak_x_px", "peak_y_px", "mean"),
]


def _cells(region: Region) -> Iterator[Any]:
    for field in fields(region):
        value = getattr(region, field.name)
        if isinstance(value, tuple):
            yield from value
        else:
            yield "" if value is None else value


def _regions_of(
    plane: FloatArray,
    above: BoolArray,
    number: int,
    step: float,
    spacing_mm: tuple[float, float] | None,
) -> Iterator[Region]:
    from scipy import ndimage

    labels, _ = ndimage.label(above, _TOUCHING)
    for index, box in enumerate(ndimage.find_objects(labels), start=1):
        inside = labels[box] == index
        yield _region(plane[box], inside, (box[0].start, box[1].start), number, step, spacing_mm)


def _region(
    values: FloatArray,
    inside: BoolArray,
    corner: tuple[int, int],
    number: int,
    step: float,
    spacing_mm: tuple[float, float] | None,
) -> Region:
    # Counts instead of places: two integers for each pixel take more memory than the picture.
    strength = values[inside].astype(np.float64)
    rows, columns = inside.sum(axis=1), inside.sum(axis=0)
    best = int(strength.argmax())
    best_row = int(np.searchsorted(rows.cumsum(), best, side="right"))
    best_column = int(np.flatnonzero(inside[best_row])[best - rows[:best_row].sum()])
    area = len(strength) * step * step
    top, left = corner
    return Region(
        image=number,
        area_px=round(area),
        area_mm2=_area_mm2(area, spacing_mm),
        box_xyxy_px=(
            int(np.floor(left * step)),
            int(np.floor(top * step)),
            int(np.ceil((left + inside.shape[1]) * step)),
            int(np.ceil((top + inside.shape[0]) * step)),
        ),
        centroid_xy_px=(
            _centre(left + _mean_place(columns), step),
            _centre(top + _mean_place(rows), step),
        ),
        peak=float(strength[best]),
        peak_xy_px=(
            int(_centre(left + best_column, step)),
            int(_centre(top + best_row, step)),
        ),
        mean=float(strength.mean()),
    )


def _mean_place(counts: NDArray[np.integer[Any]]) -> float:
    """The mean index of what is counted by index."""
    return float((counts * np.arange(len(counts))).sum() / counts.sum())


def _centre(value: float, step: float) -> float:
    """The centre of a map value, in pixels that are counted at their centres."""
    return float((value + 0.5) * step - 0.5)


def _fitted(ignore: BoolArray, size_hw: tuple[int, int], case: Case) -> BoolArray:
    if ignore.shape == size_hw:
        return ignore
    if case.kind != "slide":
        raise InputError(
            f"{case.source}: its ignore mask is {ignore.shape[1]}×{ignore.shape[0]} pixels, the "
            f"image {size_hw[1]}×{size_hw[0]}. They must match.",
            path=case.source,
        )
    rows, columns = (
        ((np.arange(side) + 0.5) * given / side).astype(int)
        for side, given in zip(size_hw, ignore.shape, strict=True)
    )
    picked: NDArray[Any] = ignore[np.ix_(rows, columns)]
    return picked
