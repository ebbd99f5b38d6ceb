"""The memory of normal patches: exact nearest neighbours by cosine (Eqs. 5 and 6)."""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from recap.methods.recap.logits import EPSILON

BEYOND_NORMAL = 3.0
CHUNK_ROWS = 16_384
"""Rows compared at once: bounds the similarity matrix, whatever the size of the memory."""


def build_memory(tokens: Tensor) -> Tensor:
    """Unit rows of all patches of all images: (N, R, C) -> (M, C)."""
    return F.normalize(tokens.flatten(0, 1), dim=-1)


def choose_rows(tokens: Tensor, coreset: int | None) -> tuple[Tensor, Tensor | None]:
    """The memory's rows and, if it is a coreset, which of the N · R patches they are: (M,)."""
    rows = build_memory(tokens)
    if coreset is None or coreset >= len(rows):
        return rows, None
    chosen = k_centre(rows, coreset)
    return rows[chosen], chosen


def nearest_distance(tokens: Tensor, memory: Tensor) -> Tensor:
    """(Eq. 5) d = min over memory rows of 1 − cosine: (B, R, C), (M, C) -> (B, R)."""
    queries = tokens.flatten(0, 1)
    # A length is the same for all rows, so it divides their maximum rather than every token.
    largest = [(queries @ chunk.T).amax(dim=-1) for chunk in memory.split(CHUNK_ROWS)]
    best = functools.reduce(torch.maximum, largest)
    return 1 - best.view(tokens.shape[:2]) / tokens.norm(dim=-1).clamp_min(EPSILON)


def nearest_rows(tokens: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """(Eq. 5) The distance, and the row that is so near: (R, C), (M, C) -> (R,), (R,)."""
    queries = F.normalize(tokens, dim=-1)
    best = queries.new_full((len(queries),), -torch.inf)
    where = torch.zeros(len(queries), dtype=torch.long, device=queries.device)
    for number, chunk in enumerate(memory.split(CHUNK_ROWS)):
        cosine, row = (queries @ chunk.T).max(dim=-1)
        where = torch.where(cosine > best, row + number * CHUNK_ROWS, where)
        best = torch.maximum(best, cosine)
    return 1 - best, where


def normalised_distance(distance: Tensor) -> Tensor:
    """(Eq. 6) d̄ = clip(d / 2, 0, 1)."""
    return (distance / 2).clamp(0, 1)


def standardised_distance(distance: Tensor, normal: Tensor) -> Tensor:
    """How far beyond normal a distance is, 0..1: (L, B, R), (2, L) -> (L, B, R).

    `normal` is the mean and the deviation of the distances of normal patches to other normal
    images. Half a cosine distance lives between 0.05 and 0.2, whatever the patch; on this scale a
    normal patch is near 0.05, and one three deviations away is at 0.5.
    """
    mean, deviation = normal[:, :, None, None]
    return torch.sigmoid((distance - mean) / deviation - BEYOND_NORMAL)


def k_centre(rows: Tensor, count: int) -> Tensor:
    """Greedy k-centre: the row nearest to the mean, then always the farthest: (M, C) -> (k,)."""
    current = int((rows @ rows.mean(dim=0)).argmax())
    closest = torch.full((len(rows),), -torch.inf, device=rows.device)
    chosen = []
    for _ in range(count):
        chosen.append(current)
        closest = torch.maximum(closest, rows @ rows[current])
        closest[current] = torch.inf
        current = int(closest.argmin())
    return torch.tensor(chosen, device=rows.device)
