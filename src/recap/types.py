"""The values that flow through recap: numpy only, so that every layer may use them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]

Window = tuple[float, float]
"""The values shown as black and as white, in the file's own unit."""

Branch = Literal["seg", "det"]
BRANCHES: tuple[Branch, Branch] = ("seg", "det")
CLASSES: tuple[str, str] = ("normal", "abnormal")
Mode = Literal["few-shot", "zero-shot", "normal-only"]
"""What a detector was fitted on: both classes of the target, other domains, or normal images."""


@dataclass(frozen=True)
class Identity:
    """Whom and what an image shows; empty where its source does not say."""

    patient: str = ""
    study: str = ""
    series: str = ""
    instance: str = ""


@dataclass(frozen=True, eq=False)
class Geometry:
    """Where an image's pixels lie: in the patient, and in a larger source it was cut from.

    `affine_ras` takes (slice, row, column, 1) to millimetres towards right, anterior and superior;
    the slice index of a single image is 0. `orientation` names where slices, rows and columns run
    to, such as "SPL" for an axial slice as radiologists look at it. A tile of a slide starts at
    `origin_px` (row, column) of the full-resolution slide and takes `source_px_per_px` of its
    pixels for one of its own.
    """

    spacing_mm: tuple[float, float] | None = None
    affine_ras: NDArray[np.float64] | None = None
    orientation: str = ""
    origin_px: tuple[int, int] = (0, 0)
    source_px_per_px: float = 1.0

    def to_source_px(self, row: float, column: float) -> tuple[float, float]:
        """A pixel centre of this image in the source's full-resolution pixels."""
        step = self.source_px_per_px
        return (
            self.origin_px[0] + (row + 0.5) * step - 0.5,
            self.origin_px[1] + (column + 0.5) * step - 0.5,
        )


@dataclass(frozen=True, eq=False)
class Image:
    """One image as read from its source: grey (H, W) or RGB (H, W, 3), float32 in 0..1."""

    pixels: FloatArray
    source: str
    geometry: Geometry = Geometry()
    identity: Identity = Identity()

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pixels.shape[0], self.pixels.shape[1]

    def __repr__(self) -> str:
        return f"Image({self.source!r}, shape={self.pixels.shape})"


@dataclass(frozen=True)
class Sample:
    """One labelled image file of a support set, a pool or a test split."""

    path: Path
    abnormal: bool
    mask: Path | None = None
    domain: str = ""
    patient: str = ""
    """Whom it shows, where a manifest or a file name says so."""


@dataclass(frozen=True)
class DomainCheck:
    """Whether a case is like those that a detector knows; that takes no threshold of scores."""

    in_domain: bool
    """False: unlike all that is known; neither normal nor abnormal, and its score means little."""
    distance: float
    """1 − cosine to the nearest known image; of many images, what half of them stay within."""
    limit: float
    p_value: float | None = None
    """Share of known cases that are as far from the others; None where those are of another kind.
    """
    warning: str = ""
    """In words; empty in the domain."""


@dataclass(frozen=True)
class Decision:
    """What a calibrated detector makes of a score, and by which rule."""

    abnormal: bool
    rule: str
    """In words, with its threshold: shown wherever the decision is."""
    p_value: float
    """Share of normal images that score at least as high, never below 1 / (n + 1)."""
    probability: float | None = None
    """Calibrated on labelled images; None without any."""
    in_domain: bool = True
    """False: the image is unlike all that the detector was fitted on; its score means little."""
    domain_p_value: float | None = None


@dataclass(frozen=True)
class Region:
    """One connected part of a map above the calibrated level, in the image's own pixels."""

    image: int
    """Slice, frame or tile number; 0 for a picture."""
    area_px: int
    area_mm2: float | None
    box_xyxy_px: tuple[int, int, int, int]
    """Left, top, right, bottom; right and bottom are outside."""
    centroid_xy_px: tuple[float, float]
    peak: float
    peak_xy_px: tuple[int, int]
    mean: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a detector says about an image, or about a case of many.

    `map` has the source's own pixels: (H, W) of a picture, (N, H, W) of frames and volumes. A
    slide's covers it from its upper left corner; what was not looked at (background) is NaN. A
    branch that the detector does not have (no memory in zero-shot, no prototypes after normal-only
    fitting) is None. `drift` is how far each prototype moved for this image: (branch, layer,
    class).
    """

    score: float
    map: FloatArray
    score_prototype: float | None = None
    score_memory: float | None = None
    drift: FloatArray | None = None
    source: str = ""
    decision: Decision | None = None
    """None without a threshold. Detectors that were fitted on two or more normal images have one,
    estimated by leaving each of them out in turn; `recap calibrate` sets a better one."""
    descriptor: FloatArray | None = None
    """The image as a whole, as the encoder sees it: a unit vector. None from other methods."""
    domain: DomainCheck | None = None
    """None where the detector knows fewer than two images, and from other methods."""
    images: tuple["Prediction", ...] = ()
    """Each slice, frame or tile by itself, in their order; none of a picture."""
    origin_px: tuple[int, int] = (0, 0)
    """Row and column where a tile starts in its slide."""
    source_px_per_px: float = 1.0
    """Pixels of the source for one value of the map: more than one in slides."""

    @property
    def by_image(self) -> tuple["Prediction", ...]:
        """The images of a case, be it a single one."""
        return self.images or (self,)

    @property
    def highest(self) -> int:
        """The number of the image with the highest score."""
        return int(np.argmax([image.score for image in self.by_image]))

    @property
    def descriptors(self) -> FloatArray | None:
        """The images as the encoder sees them (n, D); None from other methods."""
        found = [d for image in self.by_image if (d := image.descriptor) is not None]
        return np.stack(found) if found and len(found) == len(self.by_image) else None

    def __repr__(self) -> str:
        parts = [f"score={self.score:.4f}"]
        if self.domain is not None and not self.domain.in_domain:
            parts.append("out of domain")
        elif self.decision is not None:
            parts.append("abnormal" if self.decision.abnormal else "normal")
        if self.decision is not None:
            parts.append(f"p={self.decision.p_value:.3g}")
        parts += [f"map={self.map.shape}"] + [f"images={len(self.images)}"] * bool(self.images)
        return f"Prediction({', '.join(parts)}, {self.source!r})"
