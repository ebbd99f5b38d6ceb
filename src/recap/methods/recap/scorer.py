"""What every model of this package is to its user: pixels in, scores and maps out."""

from dataclasses import dataclass
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
