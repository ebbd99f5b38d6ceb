"""Adapters: a light projection of one tapped layer for one branch (method, step 2).

A random start keeps a random part of what the encoder saw, and which part that is decides much of
what eight images can teach. Principal directions, in which the support's tokens differ most, keep
the most of it, whatever the seed. Each comes with its opposite, as LeakyReLU lets one side pass.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SLOPE = 0.01
KEEP, MIX = 0.8, 0.1
"""Write-back: x ← 0.8 x + 0.1 seg + 0.1 det."""
ROW_LENGTH = 3**-0.5
"""As long as rows of the default start of `torch.nn.Linear` are on average."""


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
        """Project back what is added to the encoder: (B, T, C) -> (B, T, width)."""
        assert self.up is not None
        return F.leaky_relu(self.up(tokens), SLOPE, inplace=True)


def write_back(hidden: Tensor, seg: Tensor, det: Tensor) -> Tensor:
    """Mix what the next block sees: x ← 0.8 x + 0.1 seg + 0.1 det, class token included."""
    return KEEP * hidden + MIX * seg + MIX * det


class Spread:
    """The covariance of tokens that come a few at a time."""

    def __init__(self, width: int) -> None:
        self._count = 0
        self._sum = torch.zeros(width, dtype=torch.float64)
        self._products = torch.zeros(width, width, dtype=torch.float64)

    def add(self, tokens: Tensor) -> None:
        """Take more tokens in: (..., width)."""
        rows = tokens.flatten(0, -2).cpu()
        self._count += len(rows)
        self._sum += rows.sum(dim=0).double()
        self._products += (rows.T @ rows).double()

    def covariance(self) -> Tensor:
        """(width, width), in double precision."""
        mean = self._sum / self._count
        return self._products / self._count - torch.outer(mean, mean)


def principal_rows(covariance: Tensor, channels: int) -> Tensor:
    """Rows of an adapter, at most as many as its channels: (width, width) -> (2 n, width).

    The first n are the principal directions from the strongest down, the others their opposites.
    """
    pairs = min(channels // 2, len(covariance))
    directions = torch.linalg.eigh(covariance).eigenvectors.flip(dims=(1,))[:, :pairs].T
    return ROW_LENGTH * torch.cat([directions, -directions]).float()
