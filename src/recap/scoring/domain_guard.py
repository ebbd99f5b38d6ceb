"""Is an image like those a detector was fitted on? Told by its distance in the encoder's space.

The mean patch of each tapped layer stands for the image. An image much farther from its nearest
known image than those are from each other shows something else: another organ or modality, a photo.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recap.config import Section
from recap.scoring.conformal import images_needed, p_value, threshold_at
from recap.types import FloatArray

DESCRIPTORS = "domain.descriptors"
"""The name under which a bundle keeps them."""
FAR_RATE = 0.01
BEYOND = 1.5
"""Measured on four domains: an image of another patient or with a lesion is often a little
farther than the known ones are from each other, one of another organ or modality much farther."""
_SAME = 1e-6
_CHUNK = 1024


class DomainRange(Section):
    """How far the known images lie from each other."""

    distances: list[float]
    """Of each to its nearest other, rising."""
    limit: float
    """An image farther than this from all of them is out of the domain."""

    def p_value(self, distance: float) -> float:
        """The share of known images that are at least as far from all others."""
        return p_value(self.distances, distance)

    def holds(self, distance: float) -> bool:
        """Whether an image at this distance still belongs to the domain."""
        return distance <= self.limit

    @property
    def rule(self) -> str:
        """How far an image may be, in words."""
        return (
            f"an image farther than {self.limit:.3g} from all {len(self.distances)} known ones "
            f"(each of them has another within {self.distances[-1]:.3g}) is out of it"
        )

    def warning(self, distance: float) -> str:
        """What to say of an image that is out of the domain."""
        return (
            f"OUT OF DOMAIN, the score means little: unlike all {len(self.distances)} known images "
            f"(distance {distance:.3g}, limit {self.limit:.3g})"
        )


def domain_range(
    descriptors: Sequence[FloatArray | None],
) -> tuple[DomainRange | None, FloatArray | None]:
    """The range of some images, and their descriptors (n, C); None for fewer than two."""
    known = [descriptor for descriptor in descriptors if descriptor is not None]
    if len(known) < 2 or len(known) < len(descriptors):
        return None, None
    rows = np.stack(known)
    distances = np.sort(distances_to_others(rows))
    return DomainRange(distances=distances.tolist(), limit=domain_limit(distances)), rows


def domain_limit(distances: NDArray[np.float64]) -> float:
    """How far an image may be from the nearest known one: `distances` rise.

    Half as far again as the distance that 1 % of the known images exceed; fewer than 99 images
    cannot tell that, and their largest distance takes its place.
    """
    enough = len(distances) >= images_needed(FAR_RATE)
    base = threshold_at(distances.tolist(), FAR_RATE) if enough else float(distances[-1])
    return BEYOND * max(base, _SAME)  # equal images are a rounding error apart


def distances_to_others(rows: FloatArray) -> NDArray[np.float64]:
    """1 − cosine of each unit row to its nearest other: (n, C) -> (n,)."""
    nearest_other = np.empty(len(rows), np.float64)
    for start in range(0, len(rows), _CHUNK):
        cosine = rows[start : start + _CHUNK] @ rows.T
        own = np.arange(len(cosine))
        cosine[own, start + own] = -np.inf
        nearest_other[start : start + len(cosine)] = 1 - cosine.max(axis=1)
    return np.maximum(nearest_other, 0)


def nearest(descriptor: FloatArray, known: FloatArray) -> float:
    """1 − cosine to the nearest known image: (C,), (n, C) -> distance."""
    return max(0.0, float(1 - (known @ descriptor).max()))


def mean_descriptor(descriptors: Sequence[FloatArray | None]) -> FloatArray | None:
    """The descriptor of a case from those of its images; None where one has none."""
    given = [descriptor for descriptor in descriptors if descriptor is not None]
    if not given or len(given) < len(descriptors):
        return None
    if len(given) == 1:
        return given[0]
    mean = np.mean(given, axis=0, dtype=np.float64)
    return np.asarray(mean / max(float(np.linalg.norm(mean)), 1e-12), np.float32)
