"""Adapters: a light projection of one tapped layer for one branch (method, step 2)."""

import torch.nn.functional as F
from torch import Tensor, nn

SLOPE = 0.01
KEEP, MIX = 0.8, 0.1
"""Write-back: x ← 0.8 x + 0.1 seg + 0.1 det."""


class Adapter(nn.Module):
    """fc1 (width → C) and, when writing back, fc2 (C → width); no bias, LeakyReLU after each."""

    def __init__(self, width: int, channels: int, write_back: bool) -> None:
        super().__init__()
        self.down = nn.Linear(width, channels, bias=False)
        self.up = nn.Linear(channels, width, bias=False) if write_back else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Scoring tokens: (B, T, width) -> (B, T, C)."""
        return F.leaky_relu(self.down(hidden), SLOPE, inplace=True)

    def residual(self, tokens: Tensor) -> Tensor:
        """What this adapter adds to the encoder: (B, T, C) -> (B, T, width)."""
        assert self.up is not None
        return F.leaky_relu(self.up(tokens), SLOPE, inplace=True)


def write_back(hidden: Tensor, seg: Tensor, det: Tensor) -> Tensor:
    """What the next block sees: x ← 0.8 x + 0.1 seg + 0.1 det, class token included."""
    return KEEP * hidden + MIX * seg + MIX * det
