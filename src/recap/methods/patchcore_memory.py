"""PatchCore's memory: a greedy coreset in Euclidean distance, and exact search in it.

The search of `recap.memory` is by cosine; tokens have lengths here, so it does not serve.
"""

import math

import torch
from torch import Tensor

from recap.methods.recap.memory import CHUNK_ROWS


def coreset_rows(rows: Tensor, share: float, project_to: int | None, seed: int) -> Tensor:
    """Which rows (M, C) to remember: greedy k-centre, in a random projection if one is asked for.

    A projection to fewer dimensions nearly keeps distances (Johnson and Lindenstrauss) and makes
    each step cheaper; the rows that are remembered are not projected.
    """
    count = max(1, int(len(rows) * share))
    if count == len(rows):
        return torch.arange(count, device=rows.device)
    if project_to is not None and project_to < rows.shape[1]:
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.randn(rows.shape[1], project_to, generator=generator)
        rows = rows @ (matrix / math.sqrt(project_to)).to(rows)
    return euclidean_k_centre(rows, count)


def euclidean_k_centre(rows: Tensor, count: int) -> Tensor:
    """The row nearest to the mean, then always the farthest from those chosen: (M, C) -> (k,)."""
    current = int((rows - rows.mean(dim=0)).square().sum(dim=-1).argmin())
    closest = rows.new_full((len(rows),), torch.inf)
    chosen = []
    for _ in range(count):
        chosen.append(current)
        closest = torch.minimum(closest, (rows - rows[current]).square().sum(dim=-1))
        closest[current] = -torch.inf  # never twice, however many rows are alike
        current = int(closest.argmax())
    return torch.tensor(chosen, device=rows.device)


def nearest_rows(tokens: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Euclidean distance to the nearest memory row, and which it is: (Q, C), (M, C) -> (Q,), (Q,).

    Squares of distances are expanded into products, which is fast but loses small distances
    between long vectors. So the common part of all vectors is taken off first, and the distance
    to the row that was found is computed from the difference itself.
    """
    centre = memory.mean(dim=0)
    queries = tokens - centre
    best = queries.new_full(queries.shape[:1], torch.inf)
    found = torch.zeros_like(best, dtype=torch.long)
    for start in range(0, len(memory), CHUNK_ROWS):
        chunk = memory[start : start + CHUNK_ROWS] - centre
        value, index = _farness_order(queries, chunk).min(dim=-1)
        found = torch.where(value < best, index + start, found)
        best = torch.minimum(best, value)
    return distance(tokens, memory[found]), found


def _farness_order(queries: Tensor, rows: Tensor) -> Tensor:
    """Squared distances less |q|², which is the same for all rows: (Q, C), (M, C) -> (Q, M)."""
    return rows.square().sum(dim=-1) - 2 * queries @ rows.T


def distance(left: Tensor, right: Tensor) -> Tensor:
    """Euclidean distance along the last dimension."""
    return (left - right).square().sum(dim=-1).sqrt()


def density_weight(token: Tensor, farness: Tensor, found: Tensor, memory: Tensor, b: int) -> Tensor:
    """Weight of an image's score by how crowded the memory is where its worst patch was matched.

    1 − exp d(t, m*) / Σ exp d(t, m) over the b rows m nearest to m*, itself included (Eq. 7 of
    PatchCore): small where the patch is hardly farther from m* than from rows around it.

    Args:
        token: The worst patch t of each image, (B, C).
        farness: Its distance to its nearest row m*, (B,).
        found: Which row that is, (B,).
        b: Rows of the neighbourhood; with one there is nothing to compare, and the weight is 1.
    """
    b = min(b, len(memory))
    if b < 2:
        return torch.ones_like(farness)
    centred = memory - memory.mean(dim=0)
    rows = _farness_order(centred[found], centred).topk(b, largest=False).indices
    around = distance(token.unsqueeze(1), memory[rows])  # (B, b)
    return 1 - torch.exp(farness - around.logsumexp(dim=-1))
