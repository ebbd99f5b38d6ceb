"""A start for adapters: the directions in which the support's tokens differ most from each other.

A random start keeps a random part of what the encoder saw, and which part that is decides much of
what eight images can teach. Principal directions keep the most of it, whatever the seed. Each comes
with its opposite, as LeakyReLU lets one side of each pass.
"""

import torch
from torch import Tensor

ROW_LENGTH = 3**-0.5
"""As long as rows of the default start of `torch.nn.Linear` are on average."""


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
