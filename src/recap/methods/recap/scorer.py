"""What every model of this package is to its user: pixels in, scores and maps out."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class BranchOutput:
    """Scores (B,) and maps (B, S, S) of the prototypes, of the memory, or of both."""

    score: Tensor
    map: Tensor


@dataclass(frozen=True)
class Output:
    """What the model says about a batch, in the input's frame (S × S)."""

    score: Tensor
    map: Tensor
    prototype: BranchOutput | None
    memory: BranchOutput | None
    drift: Tensor | None
    """(B, 2, L, 2): image, branch, layer, class."""
    appearance: Tensor | None = None
    """(B,): evidence of the image as a whole, where it has a share in the score."""
    descriptor: Tensor | None = None
    """(B, D): each image as a whole, as the frozen encoder sees it; unit vectors."""


def without_maps(output: Output) -> Output:
    """The scores and the drift alone, to be kept for many images."""
    nothing = output.map.new_empty((len(output.map), 0, 0))  # a slice would hold all of its map

    def scores(branch: BranchOutput | None) -> BranchOutput | None:
        return branch and BranchOutput(branch.score, nothing)

    return replace(
        output,
        map=nothing,
        prototype=scores(output.prototype),
        memory=scores(output.memory),
        descriptor=None,
    )


class Scorer(nn.Module):
    """A model that scores images, on a frozen encoder that is not saved with it.

    Buffers registered as None (a memory that nothing was put into yet) may have any size in a
    saved detector; everything else must fit.
    """

    encoder: Any
    """Has name, checksum, input_px, mean and std."""

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self.encoder.mean.device

    @property
    def num_trainable_parameters(self) -> int:
        """Parameters that training changes; the encoder is frozen and memories are not trained."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def forward(self, pixels: Tensor) -> Output:
        """Score a batch of 0..1 pixels (B, 3, S, S)."""
        raise NotImplementedError
