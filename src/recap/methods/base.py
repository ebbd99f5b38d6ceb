"""The interface of every method: pixels in, evidence out, and one rule that adds it up.

A score and a map are sums. Every source of evidence (prototypes, a memory, the image as a whole)
says of each layer what it sees; the layers are weighed, and each source takes its share from what
came before it. Score, map, explanation and the judgement of left-out images read this one list.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Evidence:
    """The word of one source about a batch, layer by layer, all of it in 0..1.

    Without layers of its own a source is its own single layer, number 0. One that has nothing to
    say about the place has no map.
    """

    source: str
    score: Tensor
    """(L, B)"""
    weights: Tensor
    """(L,): of the layers in the score; they add up to 1."""
    score_share: float
    """Of the score: what this source takes from all that stand before it in the list."""
    map: Tensor | None = None
    """(L, B, n, n) as it is drawn, before `Scorer.on_pixels`."""
    map_weights: Tensor | None = None
    """(L,): of the layers in the map."""
    map_share: float = 0.0
    layers: tuple[int, ...] = (0,)
    """The encoder's blocks, counted from 1."""
    drift: Tensor | None = None
    """(B, 2, L, 2): how far prototypes moved; image, branch, layer, class."""


@dataclass(frozen=True, eq=False)
class Output:
    """Scores and maps of a batch, in the input's frame (S × S)."""

    score: Tensor
    """(B,)"""
    map: Tensor
    """(B, S, S)"""
    scores: dict[str, Tensor] = field(default_factory=dict)
    """The score (B,) of each source alone, where there are sources to tell apart."""
    drift: Tensor | None = None
    """(B, 2, L, 2): image, branch, layer, class."""
    descriptor: Tensor | None = None
    """(B, D): each image as a whole, as the frozen encoder sees it; unit vectors."""

    def without_maps(self) -> "Output":
        """Return the scores and the drift alone, to be kept for many images."""
        nothing = self.map.new_empty((len(self.map), 0, 0))  # a slice would hold all of its map
        return replace(self, map=nothing, descriptor=None)


@dataclass(frozen=True)
class Nearest:
    """The remembered normal patch that is nearest to a place, in one layer and branch."""

    layer: int
    branch: str
    """seg or det; both where they share the memory."""
    distance: float
    row: int | None
    """Its number among the patches of all normal support images, one image after the other."""


class Scorer(nn.Module):
    """A model that scores images, on a frozen encoder that is not saved with it.

    A method writes `forward`, or `evidence` where its score is a sum. Buffers registered as None
    (a memory that nothing was put into yet) may have any size in a saved detector; everything else
    must fit.
    """

    encoder: Any
    """Has name, checksum, input_px, mean and std."""
    source = "method"
    """The name of its evidence where it has a single one."""
    owner: Tensor | None = None
    """(M,): which normal support image each row of `memory` (…, M, C) comes from, after a fit."""
    mirrored: tuple[int, ...] = (2, 3)
    """Axes of pixels (B, 3, S, S) that are turned round where a method has to be shown an image
    that it does not remember, copies included."""

    @property
    def device(self) -> torch.device:
        """The device that the model lives on."""
        return self.encoder.mean.device

    @property
    def num_trainable_parameters(self) -> int:
        """Parameters that training changes; the encoder is frozen and memories are not trained."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def encode(self, pixels: Tensor) -> Tensor:
        """Do the part of the work that training does not change."""
        raise NotImplementedError

    def evidence(self, pixels: Tensor, parts: bool = False) -> list[Evidence]:
        """Say what each source sees; with `parts` every layer has a map of its own."""
        output = self(pixels)
        one = output.score.new_ones(1)
        return [Evidence(self.source, output.score[None], one, 1.0, output.map[None], one, 1.0)]

    def on_pixels(self, maps: Tensor, pixels: Tensor) -> Tensor:
        """Bring maps of one image (L, n, n) to its pixels (L, S, S); a linear operation."""
        return maps

    def patch_at(self, row: int, column: int) -> int | None:
        """Find the patch that has most to say at a pixel of the square; None if there is none."""
        grid = getattr(self.encoder, "grid", None)
        if grid is None:
            return None
        down, across = (min(p // self.encoder.patch_px, grid - 1) for p in (row, column))
        return int(down * grid + across)

    def nearest(self, pixels: Tensor, patch: int) -> list[Nearest]:
        """Find the remembered patches nearest to a patch of one image, if any are remembered."""
        return []

    def without(self, image: int) -> Self | None:
        """Return the model as if that normal support image had not been remembered.

        None where nothing would be left to compare with. The number counts normal support images in
        their order. A model that remembers none is as it was, as is one that does not know any more
        which image its rows come from.
        """
        memory: Tensor | None = getattr(self, "memory", None)
        if memory is None or self.owner is None:
            return self
        others = (self.owner != image).to(memory.device)
        if not others.any():
            return None
        other = copy.copy(self)
        other._buffers = {**self._buffers, "memory": memory[..., others, :]}
        return other

    def drift_bound(self) -> Tensor | None:
        """Bound the drift that any image can cause: (2, L, 2), where prototypes move."""
        return None

    def settle(self) -> None:
        """Let go of what only fitting needs: a model that is loaded never had it."""

    def lacking(self) -> str:
        """Name what a bundle of this kind must hold and this one does not; empty if all is here."""
        return ""


def combine(evidence: Sequence[Evidence]) -> Output:
    """(Eqs. 8 and 9) Layers are weighed, then every source takes its share; maps as drawn."""
    score, drawn, scores = None, None, {}
    drift = None
    for part in evidence:
        own = scores[part.source] = weigh(part.score, part.weights)
        score = own if score is None else mix(score, own, part.score_share)
        drift = part.drift if part.drift is not None else drift
        if part.map is None or part.map_weights is None:
            continue
        own = weigh(part.map, part.map_weights)
        drawn = own if drawn is None else mix(drawn, own, part.map_share)
    if score is None or drawn is None:
        raise RuntimeError("Nothing has evidence to give: fit comes first.")
    return Output(score, drawn, scores, drift)


def shares(evidence: Sequence[Evidence], of_map: bool = False) -> Iterator[tuple[Evidence, float]]:
    """Each source with the weight that it has in the end; the weights add up to 1."""
    heard = [part for part in evidence if not of_map or part.map is not None]
    for number, part in enumerate(heard):
        weight = 1.0 if number == 0 else part.map_share if of_map else part.score_share
        for later in heard[number + 1 :]:
            weight *= 1 - (later.map_share if of_map else later.score_share)
        yield part, weight


def top_count(count: int, ratio: float) -> int:
    """k = max(1, int(ratio · R)), of R patches or of the images of a case."""
    # 0.29 · 100 is 28.999… in binary; a hair more keeps the decimal meaning.
    return max(1, int(ratio * count + 1e-9))


def top_k_mean(values: Tensor, ratio: float) -> Tensor:
    """(Eq. 7) Mean of the k largest patch values: (..., R) -> (...)."""
    count = top_count(values.shape[-1], ratio)
    return values.topk(count, dim=-1, sorted=False).values.mean(dim=-1)


def weigh(per_layer: Tensor, weights: Tensor) -> Tensor:
    """(Eq. 8) Σ_l w_l · v_l: (L, ...), (L,) -> (...)."""
    return (weights.view(-1, *[1] * (per_layer.dim() - 1)) * per_layer).sum(dim=0)


def mix(first: Tensor, second: Tensor, share: float) -> Tensor:
    """(Eq. 9) (1 − λ) · first + λ · second; for scores and for maps."""
    return (1 - share) * first + share * second
