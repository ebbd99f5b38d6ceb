"""The memory of normal patches: exact nearest neighbours by cosine (Eqs. 5 and 6)."""

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ROWS = 16_384
"""Rows compared at once: bounds the similarity matrix, whatever the size of the memory."""


def build_memory(tokens: Tensor, coreset: int | None = None) -> Tensor:
    """Unit rows of all patches of all images: (N, R, C) -> (M, C)."""
    rows = F.normalize(tokens.flatten(0, 1), dim=-1)
    if coreset is None or coreset >= len(rows):
        return rows
    return rows[k_centre(rows, coreset)]


def nearest_distance(tokens: Tensor, memory: Tensor) -> Tensor:
    """(Eq. 5) d = min over memory rows of 1 − cosine: (B, R, C), (M, C) -> (B, R)."""
    queries = F.normalize(tokens, dim=-1).flatten(0, 1)
    best = queries.new_full((len(queries),), -torch.inf)
    for chunk in memory.split(CHUNK_ROWS):
        best = torch.maximum(best, (queries @ chunk.T).amax(dim=-1))
    return (1 - best).view(tokens.shape[:2])


def normalised_distance(distance: Tensor) -> Tensor:
    """(Eq. 6) d̄ = clip(d / 2, 0, 1)."""
    return (distance / 2).clamp(0, 1)


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
