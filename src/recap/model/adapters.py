"""Adapters: light projections of the tapped layers, one per branch and layer (method, step 2)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SLOPE = 0.01
KEEP, MIX = 0.8, 0.1
"""Write-back: x ← 0.8 x + 0.1 seg + 0.1 det."""


class Adapters(nn.Module):
    """fc1 (width → C) and, when writing back, fc2 (C → width), for all layers and both branches.

    The weights of all layers are one parameter, so that seg and det share one matrix product.
    """

    def __init__(self, layers: int, width: int, channels: int, write_back: bool) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(layers, 2, channels, width))
        self.up = nn.Parameter(torch.empty(layers, 2, width, channels)) if write_back else None
        for weight in (self.down, self.up):
            if weight is not None:
                # The default start of torch.nn.Linear.
                bound = 1 / math.sqrt(weight.shape[-1])
                nn.init.uniform_(weight, -bound, bound)

    def tokens(self, hidden: Tensor, layer: int) -> Tensor:
        """Scoring tokens of one layer: (B, T, width) -> (2, B, T, C), branch first."""
        return adapt_down(hidden, self.down[layer])

    def write_back(self, hidden: Tensor, tokens: Tensor, layer: int) -> Tensor:
        """What the next block sees after one layer."""
        if self.up is None:
            return hidden
        return write_back(hidden, tokens, self.up[layer])


def adapt_down(hidden: Tensor, weight: Tensor) -> Tensor:
    """LeakyReLU(fc1 x) of both branches: (B, T, width), (2, C, width) -> (2, B, T, C)."""
    both = F.leaky_relu(F.linear(hidden, weight.flatten(0, 1)), SLOPE)  # (B, T, 2C)
    return both.unflatten(-1, (2, -1)).movedim(-2, 0)


def write_back(hidden: Tensor, tokens: Tensor, weight: Tensor) -> Tensor:
    """x ← 0.8 x + 0.1 seg + 0.1 det, each LeakyReLU(fc2 token); class token included."""
    seg, det = (
        F.leaky_relu(F.linear(token, up), SLOPE) for token, up in zip(tokens, weight, strict=True)
    )
    return KEEP * hidden + MIX * seg + MIX * det
