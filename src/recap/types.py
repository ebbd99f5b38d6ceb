"""The values that flow through recap: numpy only, so that every layer may use them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]

Branch = Literal["seg", "det"]
BRANCHES: tuple[Branch, Branch] = ("seg", "det")
CLASSES: tuple[str, str] = ("normal", "abnormal")


@dataclass(frozen=True)
class Image:
    """One image as read from its source: grey (H, W) or RGB (H, W, 3), float32 in 0..1."""

    pixels: FloatArray
    source: str

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pixels.shape[0], self.pixels.shape[1]


@dataclass(frozen=True)
class Sample:
    """One labelled image file of a support set, a pool or a test split."""

    path: Path
    abnormal: bool
    mask: Path | None = None
    domain: str = ""


@dataclass(frozen=True)
class Prediction:
    """What a detector says about one image.

    `map` has the source image's own size and pixel frame. A branch that the detector
    does not have (no memory in zero-shot, no prototypes after normal-only fitting) is None.
    `drift` is how far each prototype moved for this image: (branch, layer, class).
    """

    score: float
    map: FloatArray
    score_prototype: float | None
    score_memory: float | None
    drift: FloatArray | None
    source: str
