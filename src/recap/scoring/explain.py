"""Why: the nearest normal patch to a place of an image, and what each layer adds to the result."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from recap.errors import InputError, RecapError
from recap.io.resize import SquareResize
from recap.methods.recap.head import ReCAP
from recap.scoring.detector import Detector, Source, as_image
from recap.scoring.evidence import (
    Evidence,
    Neighbours,
    find_neighbours,
    layer_weights,
    memory_evidence,
    patch_at,
    prototype_evidence,
)
from recap.scoring.memory_origin import NOT_KEPT, Origin, origin_of, origins_kept, patch_centre
from recap.types import BRANCHES, FloatArray

NO_MEMORY = "A zero-shot detector remembers no normal images, so there is no nearest patch."
EvidenceName = Literal["prototype", "memory", "appearance"]


@dataclass(frozen=True)
class Contribution:
    """What one layer of the prototypes or of the memory adds to a score or to a map value; or the
    image as a whole to its score."""

    layer: int
    """The encoder's block, counted from 1; 0 for the image as a whole, seen in all of them."""
    source: EvidenceName
    weight: float
    """Of the layer and of the source together; all weights add up to 1."""
    evidence: float
    """What they say, in 0..1."""

    @property
    def amount(self) -> float:
        """What is added: weight · evidence."""
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
    if not isinstance(model, ReCAP):
        name = getattr(detector.card.settings, "method", type(model).__name__)
        raise RecapError(
            f"'{name}' cannot be explained: only recap's own detectors keep what each layer says. "
            "Fit with --method recap, static, normal_only or nearest."
        )
    picture = as_image(image, detector.card.reading)
    resize = SquareResize(picture.size_hw, model.encoder.input_px)
    with torch.inference_mode():
        pixels = detector.preprocess(picture)[None].to(model.device)
        prefix = model.prefix(pixels)
        tokens = model.adapt(prefix)
        whole = model.whole(pixels, prefix)
        output = model.score_tokens(tokens, whole)
        edges = whole.edges(model.settings.model.map_edge_px)
        evidence: dict[EvidenceName, Evidence] = {}
        if model.has_prototypes:
            evidence["prototype"] = prototype_evidence(model, tokens, edges)
        neighbours = None
        if model.memory is not None:
            neighbours = find_neighbours(model, tokens)
            evidence["memory"] = memory_evidence(model, neighbours, edges)
    map = resize.invert(output.map[0].cpu().numpy())
    x, y = _peak(map) if xy is None else _checked(xy, picture.size_hw)
    patch = _patch_under(model, resize, x, y)
    return Explanation(
        source=picture.source,
        size_hw=picture.size_hw,
        xy_px=(x, y),
        patch_xy_px=patch_centre(model, patch, picture.size_hw),
        score=float(output.score[0]),
        map_value=float(map[y, x]),
        score_parts=tuple(_score_parts(model, evidence, output.appearance)),
        map_parts=tuple(_map_parts(model, evidence, resize, x, y)),
        neighbours=tuple(_neighbours(detector, model, neighbours, patch)),
        note=_note(model),
        map=map,
    )


def _score_parts(
    model: ReCAP, found: dict[EvidenceName, Evidence], whole: Tensor | None
) -> Iterator[Contribution]:
    weights = layer_weights(model.theta_det)
    share = 0.0 if whole is None else model.whole_weight
    for source, evidence in found.items():
        weight = (1 - share) * evidence.weight
        yield from _parts(model, source, weight, weights, evidence.scores.tolist())
    if whole is not None:
        yield Contribution(0, "appearance", share, float(whole[0]))


def _map_parts(
    model: ReCAP, found: dict[EvidenceName, Evidence], resize: SquareResize, x: int, y: int
) -> Iterator[Contribution]:
    weights = layer_weights(model.theta_seg)
    for source, evidence in found.items():
        # Bringing a map back to the image's size is linear, so each layer's can be by itself.
        maps = (resize.invert(map.cpu().numpy()) for map in evidence.maps)
        values = [float(map[y, x]) for map in maps]
        yield from _parts(model, source, evidence.weight, weights, values)


def _parts(
    model: ReCAP,
    source: EvidenceName,
    weight: float,
    of_layers: Sequence[float],
    values: Sequence[float],
) -> Iterator[Contribution]:
    for layer, share, value in zip(model.encoder.layers, of_layers, values, strict=True):
        yield Contribution(layer, source, weight * share, value)


def _neighbours(
    detector: Detector, model: ReCAP, found: Neighbours | None, patch: int
) -> Iterator[Neighbour]:
    if found is None:
        return
    known = origins_kept(model)
    branches = BRANCHES if found.row.shape[1] > 1 else ("both",)
    for index, layer in enumerate(model.encoder.layers):
        for branch, name in enumerate(branches):
            row = int(found.row[index, branch, patch])
            distance = float(found.distance[index, branch, patch])
            origin = origin_of(model, detector.card, index, branch, row) if known else None
            yield Neighbour(layer, name, distance, origin)


def _note(model: ReCAP) -> str:
    if model.memory is None:
        return NO_MEMORY
    return "" if origins_kept(model) else NOT_KEPT


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


def _patch_under(model: ReCAP, resize: SquareResize, x: int, y: int) -> int:
    row, column = (
        int((place + 0.5) * resize.size_px / side)
        for place, side in zip((y, x), resize.source_hw, strict=True)
    )
    return patch_at(model, row, column)
