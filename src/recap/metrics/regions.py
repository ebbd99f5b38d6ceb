"""Per-region overlap (PRO): how much of each true region is found, small ones counting in full.

The overlap averaged over regions is a sum over their pixels, each weighing one over the area of
its region and over the number of regions. So the regions are labelled once, and from there on a
pixel is a value with a weight.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recap.errors import InputError
from recap.metrics.curve import DoubleArray, rank_values, weighted_area
from recap.metrics.inputs import Maps, images, need_both_classes
from recap.types import BoolArray

FAMILY_STEPS = 200
FAMILY_FPR_LIMIT = 0.3


class _Pixels(NamedTuple):
    """All pixels of all images, both kinds in rising order of their values."""

    normal: NDArray[Any]
    abnormal: NDArray[Any]
    weights: DoubleArray  # of the abnormal pixels; they sum to 1


def pro(maps: Maps, masks: Maps) -> float:
    """PRO in the form that the papers of this family report; `aupro` is the exact one.

    200 equally spaced thresholds from the lowest to the highest value of all maps, the mean
    overlap of all regions (8-connected) against the FPR of all images, where the FPR is below
    0.3, stretched to 0..1 by its own minimum and maximum.
    """
    pixels = _collect(maps, masks)
    low = min(pixels.normal[0], pixels.abnormal[0])
    high = max(pixels.normal[-1], pixels.abnormal[-1])
    thresholds = family_thresholds(low, high)
    called = pixels.normal.size - np.searchsorted(pixels.normal, thresholds, side="right")
    found = np.concatenate([[0.0], np.cumsum(pixels.weights[::-1])])
    hits = pixels.abnormal.size - np.searchsorted(pixels.abnormal, thresholds, side="right")
    area = family_area(called / pixels.normal.size, found[hits])
    if area is None:
        raise InputError(
            f"PRO is undefined for maps from {low:g} to {high:g}: its thresholds give fewer than "
            f"two false-positive rates below {FAMILY_FPR_LIMIT}. Use aupro, which needs no steps."
        )
    return area


def aupro(maps: Maps, masks: Maps, fpr_limit: float = 0.3) -> float:
    """Exact area under the mean overlap of regions up to an FPR, divided by that FPR.

    Every value is a threshold, and the curve is interpolated at the limit.
    """
    if not 0 < fpr_limit <= 1:
        raise InputError(f"The FPR limit must lie above 0 and up to 1, not {fpr_limit}.")
    pixels = _collect(maps, masks)
    values, starts = np.unique(pixels.abnormal, return_index=True)
    hits = np.diff(starts, append=pixels.abnormal.size)
    ranks = rank_values(values, hits, pixels.normal)
    weights = np.add.reduceat(pixels.weights, starts)
    return weighted_area(ranks, weights[::-1], fpr_limit) / fpr_limit


def region_weights(mask: BoolArray) -> tuple[DoubleArray, int]:
    """One over the area of its 8-connected region, for each pixel of a mask; and the regions."""
    from scipy import ndimage

    labels, count = ndimage.label(mask, structure=np.ones((3, 3), bool))
    region = labels[mask]
    return 1 / np.bincount(region, minlength=1)[region], int(count)


def family_thresholds(low: Any, high: Any) -> NDArray[Any]:
    """The steps of `pro`, in the maps' own dtype; none where the maps have a single value."""
    with np.errstate(over="ignore"):
        step = (high - low) / type(high)(FAMILY_STEPS)
    if step <= 0 or not np.isfinite(step):
        return np.empty(0, np.result_type(low))
    return np.arange(low, high, step)


def family_area(fprs: DoubleArray, overlaps: DoubleArray) -> float | None:
    """The area of `pro`; None where fewer than two different FPRs lie below the limit."""
    kept = fprs < FAMILY_FPR_LIMIT
    x, y = fprs[kept][::-1], overlaps[kept][::-1]
    if not x.size or x[0] == x[-1]:
        return None
    x = (x - x[0]) / (x[-1] - x[0])
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1])) / 2)


def _collect(maps: Maps, masks: Maps) -> _Pixels:
    normal, abnormal, weights, regions = [], [], [], 0
    for map_, mask in images(maps, masks):
        normal.append(map_[~mask])
        if mask.any():
            share, count = region_weights(mask)
            abnormal.append(map_[mask])
            weights.append(share)
            regions += count
    n_normal, n_abnormal = sum(map(len, normal)), sum(map(len, abnormal))
    need_both_classes(n_abnormal, n_normal, "pixel")
    background = np.concatenate(normal)
    background.sort()
    values = np.concatenate(abnormal)
    order = np.argsort(values)
    return _Pixels(background, values[order], np.concatenate(weights)[order] / regions)
