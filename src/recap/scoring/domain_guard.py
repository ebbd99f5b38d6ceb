"""Tell whether a case is like those that a detector knows, by distances in the encoder's space.

The mean patch of each tapped layer stands for an image. An image much farther from its nearest
known image than those are from each other shows something else: another organ or modality, a photo.
A case of many images is as far as the nearer half of them reaches: slices at its ends, which few
detectors know, make no volume foreign, and a few that look familiar make no foreign one known.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recap.config import Section
from recap.io.case import CaseKind
from recap.scoring.conformal import images_needed, p_value, threshold_at
from recap.types import DomainCheck, FloatArray

DESCRIPTORS = "domain.descriptors"
"""The name under which a bundle keeps them."""
FAR_RATE = 0.01
BEYOND = 1.5
"""Measured on four domains: an image of another patient or with a lesion is often a little
farther than the known ones are from each other, one of another organ or modality much farther."""
CASE_SHARE = 0.5
"""The share of a case's images that must lie within its distance."""
BEYOND_FOR_CASES = 1.25
"""For cases of many images where single ones are known: half of a case is seldom as far as a
single image can be."""
MOST_KEPT = 32
"""Images that are kept of a known case, spread over it."""
_SAME = 1e-6
_CHUNK = 1024
_THINGS: dict[CaseKind, str] = {
    "image": "image",
    "frames": "clip",
    "volume": "volume",
    "slide": "slide",
}


class DomainRange(Section):
    """How far the known cases lie from each other."""

    kind: CaseKind = "image"
    """What is known: single images, or cases of many."""
    distances: list[float]
    """Of each known case to the images of the others, rising."""
    limit: float
    """An image farther than this from all of them is out of the domain."""
    case_limit: float
    """Likewise a case of many images."""

    def limit_for(self, kind: CaseKind) -> float:
        """Return the distance beyond which a case of a kind is out of the domain."""
        return self.limit if kind == "image" else self.case_limit

    def check(self, distance: float, kind: CaseKind = "image") -> DomainCheck:
        """Judge a distance; the p-value compares like with like, so other kinds have none."""
        limit = self.limit_for(kind)
        return DomainCheck(
            in_domain=distance <= limit,
            distance=distance,
            limit=limit,
            p_value=p_value(self.distances, distance) if kind == self.kind else None,
            warning="" if distance <= limit else self._warning(distance, limit, kind),
        )

    @property
    def rule(self) -> str:
        """How far an image may be, in words."""
        return (
            f"{_with_article(self.kind)} farther than {self.limit_for(self.kind):.3g} from all "
            f"{len(self.distances)} known ones (each of them has another within "
            f"{self.distances[-1]:.3g}) is out of it"
        )

    def _warning(self, distance: float, limit: float, kind: CaseKind) -> str:
        far = "" if kind == "image" else f"half of this {_THINGS[kind]} is "
        return (
            f"OUT OF DOMAIN, the score means little: {far}unlike all {len(self.distances)} known "
            f"{_THINGS[self.kind]}s (distance {distance:.3g}, limit {limit:.3g})"
        )


def domain_range(
    cases: Sequence[FloatArray | None], kind: CaseKind = "image"
) -> tuple[DomainRange | None, FloatArray | None]:
    """Find the range of known cases from the descriptors of their images, (n, D) of each.

    Returns:
        The range and the descriptors to keep; None for fewer than two cases, or where a case has
        no descriptors.
    """
    known = [descriptors for descriptors in cases if descriptors is not None]
    if len(known) < 2 or len(known) < len(cases):
        return None, None
    kept = [spread(descriptors) for descriptors in known]
    rows = np.concatenate(kept)
    owner = np.repeat(np.arange(len(kept)), [len(own) for own in kept])
    of_images = distances_to_others(rows, owner)
    base = _usual(np.sort(of_images))
    if kind == "image":
        distances, case_limit = np.sort(of_images), BEYOND_FOR_CASES * base
    else:
        of_cases = [case_distance(of_images[owner == number]) for number in range(len(kept))]
        distances = np.sort(of_cases)
        case_limit = BEYOND * _usual(distances)
    found = DomainRange(
        kind=kind, distances=distances.tolist(), limit=BEYOND * base, case_limit=case_limit
    )
    return found, rows


def check_domain(
    known: DomainRange, rows: FloatArray, descriptors: FloatArray, kind: CaseKind
) -> DomainCheck:
    """Judge a case by the descriptors of its images: (n, D) against the known rows (N, D)."""
    distances = [nearest(descriptor, rows) for descriptor in descriptors]
    return known.check(case_distance(distances), kind)


def case_distance(distances: Sequence[float] | NDArray[np.float64]) -> float:
    """Return how far the nearer half of a case's images reaches; of one image, its distance.

    >>> case_distance([0.9, 0.1, 0.2, 0.3, 0.9])
    0.3
    """
    reach = int(np.ceil(CASE_SHARE * len(distances)))
    return float(np.sort(distances)[reach - 1])


def distances_to_others(rows: FloatArray, owner: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return 1 − cosine of each unit row to its nearest row of another owner: (n, D) -> (n,)."""
    nearest_other = np.empty(len(rows), np.float64)
    for start in range(0, len(rows), _CHUNK):
        part = slice(start, start + _CHUNK)
        cosine = rows[part] @ rows.T
        cosine[owner[part, None] == owner[None]] = -np.inf
        nearest_other[part] = 1 - cosine.max(axis=1)
    return np.maximum(nearest_other, 0)


def nearest(descriptor: FloatArray, known: FloatArray) -> float:
    """Return 1 − cosine to the nearest known image: (D,), (n, D) -> distance."""
    return max(0.0, float(1 - (known @ descriptor).max()))


def spread(descriptors: FloatArray) -> FloatArray:
    """Take at most `MOST_KEPT` rows, evenly spread over all: (n, D) -> (m, D)."""
    count = min(len(descriptors), MOST_KEPT)
    return descriptors[(2 * np.arange(count) + 1) * len(descriptors) // (2 * count)]


def _usual(distances: NDArray[np.float64]) -> float:
    """The distance that 1 % of the known exceed: `distances` rise.

    Fewer than 99 cannot tell that, and their largest takes its place.
    """
    enough = len(distances) >= images_needed(FAR_RATE)
    base = threshold_at(distances.tolist(), FAR_RATE) if enough else float(distances[-1])
    return max(base, _SAME)  # equal images are a rounding error apart


def _with_article(kind: CaseKind) -> str:
    return f"an {_THINGS[kind]}" if kind == "image" else f"a {_THINGS[kind]}"
