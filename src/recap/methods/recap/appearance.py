"""An image as a whole: how its tokens are spread, and on which side of the support set that lies.

Patches say where an image differs; some diseases change all of it a little. A ridge regression on
the labels of the support images has a closed form: it is the same for every seed, and leaving one
image out is another solution of a system as large as the support set.
"""

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from recap.methods.recap.class_tokens import class_vectors
from recap.methods.recap.edges import Edges, find_edges

PENALTY = 0.1
"""Of the regression, for vectors of mean length 1; between 0.003 and 0.3 it hardly matters."""
STEEPNESS = 2.0
"""An image that is as its class in the support set (±1) has the evidence 0.12 or 0.88."""


class Whole:
    """Images as a whole, from their pixels (B, 3, S, S), patches (B, L, R, width) and class tokens
    (B, L, width): the same for all heads on them."""

    def __init__(self, pixels: Tensor, patches: Tensor, classes: Tensor | None) -> None:
        self._pixels = pixels
        self._patches = patches
        self._classes = classes
        self._edges: dict[float, Edges | None] = {}

    @cached_property
    def descriptor(self) -> Tensor:
        """(B, L · width)"""
        return descriptor(self._patches)

    @cached_property
    def appearance(self) -> Tensor:
        """(B, 2 · L · width)"""
        return appearance(self._patches)

    @cached_property
    def class_vectors(self) -> Tensor:
        """(B, L · width)"""
        assert self._classes is not None  # side adapters alone have them
        return class_vectors(self._classes)

    def edges(self, reach_px: float) -> Edges | None:
        """What maps follow within that reach, if any."""
        if reach_px not in self._edges:
            self._edges[reach_px] = find_edges(self._pixels, reach_px)
        return self._edges[reach_px]


def descriptor(taps: Tensor) -> Tensor:
    """The mean patch of each layer, all side by side, as unit vectors: (B, L · width)."""
    means = F.normalize(taps.mean(dim=2), dim=-1)
    return F.normalize(means.flatten(1), dim=-1)


def appearance(taps: Tensor) -> Tensor:
    """Mean and spread of each layer's normalised tokens: (B, L, R, width) -> (B, 2 · L · width)."""
    parts = []
    for layer in taps.unbind(dim=1):  # one by one: a layer fits the processor's cache
        tokens = F.layer_norm(layer, layer.shape[-1:])
        mean = tokens.mean(dim=1)
        spread = (tokens - mean.unsqueeze(1)).square_().mean(dim=1).sqrt()
        parts += [mean, spread]
    return F.normalize(torch.stack(parts, dim=1), dim=-1).flatten(1)


def solve_appearance(vectors: Tensor, abnormal: Tensor) -> Tensor:
    """Ridge regression on labels ±1: (n, D), (n,) -> (D + 1,), the last one its offset.

    Both classes weigh the same, however many images they have.
    """
    x, labels = vectors.cpu().double(), abnormal.cpu()  # some GPUs have no float64
    share = torch.where(labels, labels.double().mean(), (~labels).double().mean())
    weight = 0.5 / share  # 1 for every image where there are as many of both
    centre = (x[labels].mean(dim=0) + x[~labels].mean(dim=0)) / 2
    x = x - centre
    length = x.norm(dim=1).mean().clamp_min(1e-12)
    x = x / length
    target = torch.where(labels, 1.0, -1.0).to(x)
    dual = torch.linalg.solve(x @ x.T + PENALTY * torch.diag(1 / weight), target)
    direction = x.T @ dual / length
    return torch.cat([direction, -(direction @ centre)[None]]).to(vectors)


def appearance_evidence(vectors: Tensor, solved: Tensor) -> Tensor:
    """How much an image looks like the abnormal ones, 0..1: (B, D), (D + 1,) -> (B,)."""
    return torch.sigmoid(STEEPNESS * (vectors @ solved[:-1] + solved[-1]))
