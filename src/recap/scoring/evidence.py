"""What every layer says about one image, before it is fused: the method's sums, taken apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recap.methods.recap.edges import Edges
from recap.methods.recap.fusion import top_k_mean
from recap.methods.recap.head import ReCAP
from recap.methods.recap.logits import probability
from recap.methods.recap.maps import interpolation_matrix
from recap.methods.recap.memory import nearest_rows, normalised_distance, standardised_distance
from recap.methods.recap.tokens import SEG, Tokens


@dataclass(frozen=True)
class Evidence:
    """Evidence of the prototypes or of the memory, layer by layer."""

    weight: float
    """Its share of the fused value: λ or 1 − λ, or 1 where it is alone."""
    scores: Tensor
    """(L,): the mean over the highest patches of the det branch, in 0..1."""
    maps: Tensor
    """(L, S, S): the seg branch."""


@dataclass(frozen=True)
class Neighbours:
    """The nearest rows of the memory for each patch: (L, b, R), b = 1 where branches share rows."""

    distance: Tensor
    row: Tensor


def prototype_evidence(model: ReCAP, tokens: Tokens, edges: Edges | None) -> Evidence:
    """What the re-centred prototypes say; the tokens are those of one image."""
    seg, det, _ = model.both_margins(tokens)
    mapped, pooled = model.read_margins(seg[:, 0], det[:, 0])
    weight = 1.0 if model.memory is None else 1 - model.settings.memory.weight
    maps = _on_pixels(probability(model.upsample(mapped)), edges)
    return Evidence(weight, _pool(model, probability(pooled)), maps)


def find_neighbours(model: ReCAP, tokens: Tokens) -> Neighbours:
    """The nearest normal patch of every patch of one image."""
    assert model.memory is not None
    found = [
        nearest_rows(of_branch[0], rows[branch])
        for layer, rows in zip(tokens, model.memory, strict=True)
        for branch, of_branch in enumerate(layer[-len(rows) :])
    ]
    branches = model.memory.shape[1]
    distance, row = (torch.stack(list(part)) for part in zip(*found, strict=True))
    return Neighbours(distance.unflatten(0, (-1, branches)), row.unflatten(0, (-1, branches)))


def memory_evidence(model: ReCAP, neighbours: Neighbours, edges: Edges | None) -> Evidence:
    """What the distances to normal patches say."""
    evidence = normalised_distance(neighbours.distance)
    weight = model.settings.memory.weight if model.has_prototypes else 1.0
    scores = _pool(model, evidence[:, -1])
    if model.normal_distance is not None:
        beyond = standardised_distance(neighbours.distance[:, -1:], model.normal_distance)
        scores = top_k_mean(beyond[:, 0], model.settings.model.map_top_k)
    return Evidence(weight, scores, _on_pixels(model.upsample(evidence[:, SEG]), edges))


def layer_weights(theta: Tensor) -> Sequence[float]:
    """softmax(θ), as numbers."""
    return theta.softmax(dim=0).tolist()


def patch_at(model: ReCAP, row: int, column: int) -> int:
    """The patch that has most to say at a pixel of the square."""
    encoder, mode = model.encoder, model.settings.model.upsample
    matrix = interpolation_matrix(encoder.grid, encoder.input_px, encoder.patch_px, mode)
    return int(matrix[row].argmax()) * encoder.grid + int(matrix[column].argmax())


def _pool(model: ReCAP, patches: Tensor) -> Tensor:
    return top_k_mean(patches, model.pooled_share)


def _on_pixels(maps: Tensor, edges: Edges | None) -> Tensor:
    """Following edges is linear, so each layer's map can by itself: (L, S, S)."""
    return maps if edges is None else edges.follow(maps)
