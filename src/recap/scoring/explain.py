"""Why: what each layer of each source adds to a score and to a place of the map, and the nearest
normal patches to that place."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recap.errors import BundleError, InputError
from recap.io.resize import SquareResize
from recap.methods.base import Evidence, Scorer, shares
from recap.scoring.bundle import Card
from recap.scoring.detector import Detector, Source, as_image
from recap.types import FloatArray

NO_MEMORY = "This detector remembers no normal images, so there is no nearest patch."


@dataclass(frozen=True)
class Origin:
    """The place that a remembered patch comes from."""

    support: int
    """Number in the card's list of support images."""
    name: str
    xy_px: tuple[float, float] | None
    """Its centre in that image's own pixels; None if the bundle does not tell the image's size."""
    size_hw: tuple[int, int] | None


@dataclass(frozen=True)
class Contribution:
    """The part of a score or of a map value that one layer of one source adds."""

    layer: int
    """The encoder's block, counted from 1; 0 where a source has no layers to tell apart."""
    source: str
    """prototype, memory, appearance (the image as a whole), or what another method says."""
    weight: float
    """Of the layer and of the source together; all weights add up to 1."""
    evidence: float
    """What they say, in 0..1."""

    @property
    def amount(self) -> float:
        """The part that is added: weight · evidence."""
        return self.weight * self.evidence


@dataclass(frozen=True)
class Neighbour:
    """The remembered normal patch that is nearest in one layer and branch."""

    layer: int
    """The encoder's block, counted from 1."""
    branch: str
    """seg or det; both where they share the memory."""
    distance: float
    """1 − cosine: 0 is the same direction, 2 the opposite."""
    origin: Origin | None
    """None where the bundle does not tell."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why an image has its score, and a place of it its map value."""

    source: str
    size_hw: tuple[int, int]
    xy_px: tuple[int, int]
    """The place asked for, or the map's peak."""
    patch_xy_px: tuple[float, float]
    """Centre of the patch that has most to say there."""
    score: float
    map_value: float
    score_parts: tuple[Contribution, ...]
    """They add up to the score."""
    map_parts: tuple[Contribution, ...]
    """They add up to the map's value at the place, unless that was cut off at 0 or 1."""
    neighbours: tuple[Neighbour, ...]
    """Nearest normal patch in each layer and branch; none without a memory."""
    note: str
    """What could not be told, and why."""
    map: FloatArray = field(repr=False)
    """The whole map, in the image's pixels."""

    @property
    def nearest(self) -> Neighbour | None:
        """The neighbour in the layer whose memory adds most to the map here."""
        added = {part.layer: part.amount for part in self.map_parts if part.source == "memory"}
        of_map = [found for found in self.neighbours if found.branch != "det"]
        return max(of_map, key=lambda found: added[found.layer], default=None)

    def record(self) -> dict[str, Any]:
        """Everything but the map, ready for JSON."""
        values = {name: value for name, value in vars(self).items() if name != "map"}
        for name in ("score_parts", "map_parts"):
            values[name] = [{**asdict(part), "amount": part.amount} for part in values[name]]
        values["neighbours"] = [asdict(found) for found in self.neighbours]
        values["nearest"] = None if self.nearest is None else asdict(self.nearest)
        return values


def explain(detector: Detector, image: Source, xy: tuple[int, int] | None = None) -> Explanation:
    """Explain an image's score and its map at a pixel (column, row), or at the map's peak."""
    model = detector.model
    picture = as_image(image, detector.card.reading)
    resize = SquareResize(picture.size_hw, model.encoder.input_px)
    with torch.inference_mode():
        pixels = detector.preprocess(picture)[None].to(model.device)
        output = model(pixels)
        evidence = model.evidence(pixels, parts=True)
        map = resize.invert(output.map[0].cpu().numpy())
        x, y = _peak(map) if xy is None else _checked(xy, picture.size_hw)
        row, column = (
            int((place + 0.5) * resize.size_px / side)
            for place, side in zip((y, x), picture.size_hw, strict=True)
        )
        patch = model.patch_at(row, column)
        neighbours = () if patch is None else tuple(_neighbours(detector, pixels, patch))
        map_parts = tuple(_map_parts(model, evidence, pixels, resize, (x, y)))
    place = (float(x), float(y))
    return Explanation(
        source=picture.source,
        size_hw=picture.size_hw,
        xy_px=(x, y),
        patch_xy_px=place if patch is None else patch_centre(model.encoder, patch, picture.size_hw),
        score=float(output.score[0]),
        map_value=float(map[y, x]),
        score_parts=tuple(_score_parts(evidence)),
        map_parts=map_parts,
        neighbours=neighbours,
        note="" if neighbours else NO_MEMORY,
        map=map,
    )


def _score_parts(evidence: list[Evidence]) -> Iterator[Contribution]:
    for part, share in shares(evidence):
        for layer, weight, value in zip(
            part.layers, part.weights.tolist(), part.score[:, 0].tolist(), strict=True
        ):
            yield Contribution(layer, part.source, share * weight, value)


def _map_parts(
    model: Scorer,
    evidence: list[Evidence],
    pixels: Tensor,
    resize: SquareResize,
    xy: tuple[int, int],
) -> Iterator[Contribution]:
    for part, share in shares(evidence, of_map=True):
        assert part.map is not None
        assert part.map_weights is not None
        # Bringing a map back to the image's size is linear, so each layer's can be by itself.
        maps = [resize.invert(m.cpu().numpy()) for m in model.on_pixels(part.map[:, 0], pixels)]
        values = [float(map[xy[1], xy[0]]) for map in maps]
        for layer, weight, value in zip(
            part.layers, part.map_weights.tolist(), values, strict=True
        ):
            yield Contribution(layer, part.source, share * weight, value)


def _neighbours(detector: Detector, pixels: Tensor, patch: int) -> Iterator[Neighbour]:
    for found in detector.model.nearest(pixels, patch):
        origin = None
        if found.row is not None:
            origin = origin_of(detector.card, detector.model.encoder, found.row)
        yield Neighbour(found.layer, found.branch, found.distance, origin)


def origin_of(card: Card, encoder: Any, row: int) -> Origin:
    """The origin of a remembered patch, from its number among those of all support images."""
    number, patch = divmod(row, encoder.grid**2)
    if number >= len(card.support):
        raise BundleError("The memory does not fit the list of support images. Fit again.")
    record = card.support[number]
    size = record.get("size_hw")
    if size is None:
        return Origin(number, str(record["name"]), None, None)
    size_hw = (int(size[0]), int(size[1]))
    return Origin(number, str(record["name"]), patch_centre(encoder, patch, size_hw), size_hw)


def patch_centre(encoder: Any, patch: int, size_hw: tuple[int, int]) -> tuple[float, float]:
    """The centre (x, y) of a patch in the pixels of an image of that size."""
    row, column = divmod(patch, encoder.grid)
    x, y = ((index + 0.5) * encoder.patch_px / encoder.input_px for index in (column, row))
    return x * size_hw[1] - 0.5, y * size_hw[0] - 0.5


def _peak(map: FloatArray) -> tuple[int, int]:
    row, column = np.unravel_index(int(map.argmax()), map.shape)
    return int(column), int(row)


def _checked(xy: tuple[int, int], size_hw: tuple[int, int]) -> tuple[int, int]:
    x, y = int(xy[0]), int(xy[1])
    if not (0 <= x < size_hw[1] and 0 <= y < size_hw[0]):
        raise InputError(
            f"The place {x}, {y} is not in the image: x must be in 0..{size_hw[1] - 1}, "
            f"y in 0..{size_hw[0] - 1}."
        )
    return x, y
