"""One picture of a scored case: the image itself, the most suspicious slice, or the whole slide."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as Pillow

from recap.io import Case
from recap.report.overlay import as_picture, overlay
from recap.types import FloatArray, Image

if TYPE_CHECKING:  # it brings torch, which other pictures do not need
    from recap.scoring.cases import CasePrediction

SLIDE_PX = 1600
"""The longer side of the picture of a slide."""


def case_overlay(
    case: Case, prediction: "CasePrediction", scale: tuple[float, float]
) -> Pillow.Image:
    """Draw the map over the picture, over the highest slice or frame, or over the slide."""
    if case.kind == "slide":
        return _slide_overlay(case, prediction, scale)
    number = prediction.highest
    map = prediction.map if case.kind == "image" else prediction.map[number]
    return overlay(case.images[number], map, scale)


def _slide_overlay(
    case: Case, prediction: "CasePrediction", scale: tuple[float, float]
) -> Pillow.Image:
    from recap.io.slide import thumbnail

    small = thumbnail(Path(case.source), SLIDE_PX)
    seen = np.nan_to_num(prediction.map, nan=0.0)
    if seen.size == 0:
        return as_picture(small)
    # The last values of a map reach beyond the slide, where the thumbnail ends.
    height, width = (side / prediction.source_px_per_px for side in case.size_hw or seen.shape)
    return overlay(small, _resized(seen, small, (0, 0, width, height)), scale)


def _resized(map: FloatArray, image: Image, box: tuple[float, float, float, float]) -> FloatArray:
    height, width = image.size_hw
    picture = Pillow.fromarray(map).resize((width, height), Pillow.Resampling.NEAREST, box)
    return np.asarray(picture, np.float32)
