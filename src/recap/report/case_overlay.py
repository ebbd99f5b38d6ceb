"""One picture of a scored case: the image itself, the most suspicious slice, or the whole slide."""

from pathlib import Path

import numpy as np
from PIL import Image as Pillow

from recap.io import Case
from recap.report.overlay import as_picture, overlay
from recap.types import FloatArray, Image, Prediction

SLIDE_PX = 1600
"""The longer side of the picture of a slide."""


def case_overlay(case: Case, prediction: Prediction, scale: tuple[float, float]) -> Pillow.Image:
    """Draw the map over the picture, over the highest slice or frame, or over the slide."""
    if case.kind == "slide":
        return _slide_overlay(case, prediction, scale)
    number = prediction.highest
    map = prediction.map if case.kind == "image" else prediction.map[number]
    return overlay(case.images[number], map, scale)


def slide_picture(case: Case, map: FloatArray, step: float) -> tuple[Image, FloatArray]:
    """A slide in small, and its map in the same pixels; `step` slide pixels are one value."""
    from recap.io.slide import thumbnail

    small = thumbnail(Path(case.source), SLIDE_PX)
    if map.size == 0:
        return small, np.zeros(small.size_hw, np.float32)
    seen = np.nan_to_num(map, nan=0.0)
    # The last values of a map reach beyond the slide, where the thumbnail ends.
    height, width = (side / step for side in case.size_hw or seen.shape)
    return small, _resized(seen, small, (0, 0, width, height))


def _slide_overlay(case: Case, prediction: Prediction, scale: tuple[float, float]) -> Pillow.Image:
    small, map = slide_picture(case, prediction.map, prediction.source_px_per_px)
    return as_picture(small) if prediction.map.size == 0 else overlay(small, map, scale)


def _resized(map: FloatArray, image: Image, box: tuple[float, float, float, float]) -> FloatArray:
    height, width = image.size_hw
    picture = Pillow.fromarray(map).resize((width, height), Pillow.Resampling.NEAREST, box)
    return np.asarray(picture, np.float32)
