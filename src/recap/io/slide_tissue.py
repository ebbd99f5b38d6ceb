"""Where a slide has tissue: stained parts are coloured, glass is not.

Colour is measured as the largest minus the smallest of red, green and blue. Unlike saturation it
stays low where a scan is nearly black, and unlike optical density also on grey dust and black ink.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recap.types import FloatArray

# Otsu's threshold is kept in these bounds: a slide full of tissue has no glass to tell apart, and
# on an empty one there is nothing but the tint of the glass and noise.
COLOUR_BOUNDS = (10, 30)


def colourfulness(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """How coloured each pixel is, 0 for grey: (..., 3) to (...)."""
    return np.asarray(rgb.max(axis=-1) - rgb.min(axis=-1))


def otsu(values: NDArray[np.uint8]) -> int | None:
    """The value that splits best, as the largest of the lower class; none if all are equal."""
    counts = np.bincount(values.ravel(), minlength=256).astype(np.float64)
    below = counts.cumsum()[:-1]
    above = counts.sum() - below
    first = (counts * np.arange(256)).cumsum()
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = first[:-1] / below - (first[-1] - first[:-1]) / above
    between = np.where((below > 0) & (above > 0), below * above * gap**2, -1.0)
    if between.max() <= 0:
        return None
    # Between two far classes every value splits equally well: the middle one is the safest.
    best = np.flatnonzero(between >= between.max() * (1 - 1e-12))
    return int(best[(len(best) - 1) // 2])


def tissue_shares(colour: NDArray[np.uint8], cell_px: int, slide_hw: tuple[int, int]) -> FloatArray:
    """The share of tissue in every square cell of an overview; zeros where there is none at all.

    Beyond `slide_hw` the overview shows nothing of the slide.
    """
    rows, columns = (side // cell_px for side in colour.shape)
    threshold = otsu(colour[: slide_hw[0], : slide_hw[1]])
    if threshold is None:
        return np.zeros((rows, columns), dtype=np.float32)
    tissue: NDArray[Any] = colour > np.clip(threshold, *COLOUR_BOUNDS)
    cells = tissue.reshape(rows, cell_px, columns, cell_px)
    return np.asarray(cells.mean(axis=(1, 3), dtype=np.float32))
