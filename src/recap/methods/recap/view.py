"""A batch as the sources of evidence see it: adapted by each branch, and as the encoder gave it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from recap.methods.features import Features
from recap.methods.recap.adapters import Adapter
from recap.methods.recap.maps import Drawing
from recap.methods.recap.prototypes import (
    PrototypePair,
    class_logits,
    find_anchors,
    find_drift,
    margin,
)


class Branch(nn.Module):
    """Adapters, prototypes and weights of the layers: one way of looking at an image.

    Without adapters tokens are the encoder's own; without prototypes there are no margins.
    """

    def __init__(
        self,
        adapters: Sequence[Adapter],
        prototypes: Sequence[PrototypePair],
        theta: nn.Parameter,
        logit_scale: float,
    ) -> None:
        super().__init__()
        self.theta = theta
        self.adapters, self.prototypes = nn.ModuleList(adapters), nn.ModuleList(prototypes)
        self.logit_scale = logit_scale

    def tokens(self, layers: Sequence[Tensor]) -> list[Tensor]:
        """Scoring tokens of each layer: (B, R, width) -> (B, R, C)."""
        if not self.adapters:
            return list(layers)
        return [adapter(taps) for adapter, taps in zip(self.adapters, layers, strict=True)]

    def margins(self, tokens: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(Eqs. 1 to 4) Margins (L, B, R) of the patches, and the prototypes' drift (B, L, 2)."""
        pairs = self.pairs
        patches = torch.stack(list(tokens))  # (L, B, R, C)
        anchors = find_anchors(pairs, patches)
        logits = class_logits(patches.flatten(0, 1), anchors.flatten(0, 1), self.logit_scale)
        margins = margin(logits).unflatten(0, (len(pairs), -1))
        return margins, find_drift(pairs, anchors).transpose(0, 1)

    @property
    def pairs(self) -> list[PrototypePair]:
        """The prototypes of each layer."""
        return [pair for pair in self.prototypes if isinstance(pair, PrototypePair)]

    @property
    def weights(self) -> Tensor:
        """Weights of the layers, softmax(θ): (L,)."""
        return self.theta.softmax(dim=0)

    def base(self) -> Tensor:
        """All prototypes before re-centring: (L, 2, C)."""
        return torch.stack([pair.base for pair in self.pairs])


class Sight:
    """A batch through one branch."""

    def __init__(self, branch: Branch, tokens: list[Tensor]) -> None:
        self.branch = branch
        self.tokens = tokens
        """Of each layer, (B, R, C)."""
        self.weights = branch.weights

    @cached_property
    def judged(self) -> tuple[Tensor, Tensor]:
        """Margins (L, B, R) and drift (B, L, 2) of its prototypes."""
        return self.branch.margins(self.tokens)


@dataclass(frozen=True, eq=False)
class View:
    """A batch as every source of evidence sees it; maps and scores are one sight where a single
    branch serves both."""

    features: Features
    maps: Sight
    scores: Sight
    drawing: Drawing
    blocks: tuple[int, ...]
    """The tapped blocks of the encoder, counted from 1."""
    parts: bool = False
    """Whether every layer is to have a map of its own."""
