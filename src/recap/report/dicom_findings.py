"""Regions as findings in the source's stored frames: what touches across slices is one finding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from recap.io.case import Case
from recap.scoring.regions import reaches
from recap.types import BoolArray, FloatArray, Region

Labels = NDArray[np.uint16]

# Beyond these a list helps nobody; the map shows them all.
MAX_FINDINGS = 100


@dataclass(frozen=True)
class Finding:
    """One connected part of the source above the level, within one frame or across slices."""

    number: int
    """From 1, the highest peak first; its value in the labels, and its segment's number."""
    peak: float
    peak_frame: int
    peak_xy_px: tuple[int, int]
    mean: float
    voxels: int
    area_px: int
    """On the peak's frame, as is the box."""
    box_xyxy_px: tuple[int, int, int, int]


def as_stored(case: Case, stack: NDArray[Any]) -> NDArray[Any]:
    """A stack in the case's order as the source's files have it: (frames, rows, columns)."""
    if case.grid is None:
        return stack
    return case.grid.restore(stack).transpose(2, 1, 0)


def find_findings(
    case: Case,
    maps: FloatArray,
    regions: Sequence[Region],
    level: float | None,
    ignore: BoolArray | None = None,
) -> tuple[Labels, list[Finding]]:
    """Findings in stored order: their labels (frames, rows, columns), and what each is.

    Without a level a region is all of its box. What `ignore` marks is in none.
    """
    mask = np.zeros(maps.shape, np.bool_)
    looked_at = maps if ignore is None else np.where(ignore, np.float32(-np.inf), maps)
    for region in regions:
        left, top, right, bottom = region.box_xyxy_px
        part = (region.image, slice(top, bottom), slice(left, right))
        mask[part] |= _region_mask(looked_at[part], region, level)
    touching = np.ones((3, 3, 3), np.bool_)
    if case.kind != "volume":  # frames that follow each other are not neighbours in space
        touching[[0, 2]] = False
    labels, _ = ndimage.label(as_stored(case, mask), touching)
    return _numbered(labels, as_stored(case, maps))


def _region_mask(map: FloatArray, region: Region, level: float | None) -> BoolArray:
    """The part of its box that is connected with its peak."""
    if level is None:
        return np.ones(map.shape, np.bool_)
    left, top = region.box_xyxy_px[:2]
    parts, _ = ndimage.label(reaches(map, level), np.ones((3, 3)))
    peak = parts[region.peak_xy_px[1] - top, region.peak_xy_px[0] - left]
    found: BoolArray = (parts == peak) & (parts > 0)
    return found


def _numbered(labels: NDArray[np.int32], maps: NDArray[Any]) -> tuple[Labels, list[Finding]]:
    """Number the findings by their peaks, and leave out the weakest if there are too many."""
    boxes = ndimage.find_objects(labels)
    peaks = [float(maps[box][labels[box] == old].max()) for old, box in enumerate(boxes, 1)]
    order = np.argsort(peaks, kind="stable")[::-1][:MAX_FINDINGS]
    numbered = np.zeros(labels.shape, np.uint16)
    findings = []
    for number, index in enumerate(order, start=1):
        box = boxes[index]
        own = labels[box] == index + 1
        numbered[box][own] = number
        findings.append(_finding(number, own, maps[box], [axis.start for axis in box]))
    return numbered, findings


def _finding(number: int, own: BoolArray, maps: NDArray[Any], start: Sequence[int]) -> Finding:
    values = np.where(own, maps, -np.inf)
    frame, row, column = (int(i) for i in np.unravel_index(values.argmax(), own.shape))
    rows, columns = np.nonzero(own[frame])
    return Finding(
        number=number,
        peak=float(values[frame, row, column]),
        peak_frame=start[0] + frame,
        peak_xy_px=(start[2] + column, start[1] + row),
        mean=float(np.mean(maps[own], dtype=np.float64)),
        voxels=int(own.sum()),
        area_px=len(rows),
        box_xyxy_px=(
            start[2] + int(columns.min()),
            start[1] + int(rows.min()),
            start[2] + int(columns.max()) + 1,
            start[1] + int(rows.max()) + 1,
        ),
    )
