"""A head taken apart as the equations have it: tokens by layer and branch, parts of a score."""

from collections.abc import Sequence

import torch
from torch import Tensor

from recap.methods.base import Output, weigh
from recap.methods.images import LabelledImages
from recap.methods.recap.head import ReCAP
from recap.methods.recap.prototypes import PrototypePair

SEG, DET = 0, 1
Tokens = Sequence[tuple[Tensor, Tensor]]
"""Of every layer (seg, det), each (B, R, C)."""


def adapt(model: ReCAP, pixels: Tensor) -> Tokens:
    """Scoring tokens of each layer and branch; of a single branch twice the same."""
    tokens = model.tokens(model.features(model.encode(pixels)))
    return list(zip(tokens[0], tokens[-1], strict=True))


def remember(model: ReCAP, normal: Tokens) -> None:
    """Have a model remember normal images by their tokens."""
    assert model.memory is not None
    branches = [SEG, DET] if len(model.branches) > 1 else [DET]
    tokens = [[layer[branch] for layer in normal] for branch in branches]
    model.memory.remember(tokens, model.settings.memory.coreset)


def pair(model: ReCAP, layer: int, branch: int) -> PrototypePair:
    """The prototypes of a layer and branch."""
    return (model.maps, model.scores)[branch].pairs[layer]


def parts(model: ReCAP, pixels: Tensor) -> dict[str, Output]:
    """Score and map of every source alone."""
    found = {}
    for part in model.evidence(pixels, parts=True):
        score = weigh(part.score, part.weights)
        drawn = torch.zeros(0) if part.map is None else weigh(part.map, part.map_weights)
        found[part.source] = Output(score, drawn)
    return found


def labelled(abnormal: Tensor, masks: Tensor, has_mask: Tensor) -> LabelledImages:
    """A batch as losses know it."""
    count = torch.arange(len(abnormal))
    zero = count * 0
    return LabelledImages(torch.zeros, abnormal, masks, has_mask, count, zero, ("",), zero)
