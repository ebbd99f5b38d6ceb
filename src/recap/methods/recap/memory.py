"""The memory of normal patches: exact nearest neighbours by cosine (Eqs. 5 and 6).

A source of evidence: a place is as abnormal as it is far from all remembered normal patches.
"""

import copy
import functools
from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.errors import BundleError
from recap.methods.base import Evidence, Nearest, top_k_mean, weigh
from recap.methods.recap.prototypes import EPSILON
from recap.methods.recap.view import View
from recap.types import BRANCHES

BEYOND_NORMAL = 3.0
SAME_ROW = 1 - 1e-6
CHUNK_ROWS = 16_384
"""Rows compared at once: bounds the similarity matrix, whatever the size of the memory."""


class Memory(nn.Module):
    """Patches of normal images as the branches see them, and how far others are from them."""

    name = "memory"
    rows: Tensor | None
    """Unit rows (L, b, M, C) of the branches for maps and for scores, b = 1 where one serves both.
    They are the patches of one image after the other, unless they are a coreset."""
    origin: Tensor | None
    """(L, b, M): of a coreset, which of all the patches each row is; else None."""
    normal: Tensor | None
    """(2, L): mean and deviation of normal patches' distances to other normal images, where the
    score is against these."""

    def __init__(
        self, share: float, pool: float, patches: int, beyond_pool: float | None = None
    ) -> None:
        super().__init__()
        self.share, self.pool, self.patches = share, pool, patches
        self.beyond_pool = beyond_pool
        """Share of the patches that scores against normal distances are the mean of, if wanted."""
        self._tokens: list[list[Tensor]] = []
        self._left: list[list[Tensor]] | None = None
        self.register_buffer("rows", None)
        self.register_buffer("origin", None)
        if beyond_pool is None:
            self.normal = None
        else:
            self.register_buffer("normal", None)

    @torch.no_grad()
    def remember(self, tokens: Sequence[Sequence[Tensor]], coreset: int | None) -> None:
        """Remember normal images, as each branch and layer sees them (N, R, C), or some rows."""
        self._tokens = [list(layer) for layer in zip(*tokens, strict=True)]
        made = [choose_rows(rows, coreset) for layer in self._tokens for rows in layer]
        self.rows = torch.stack([rows for rows, _ in made]).unflatten(0, (-1, len(tokens)))
        chosen = [origin for _, origin in made if origin is not None]
        self.origin = torch.stack(chosen).unflatten(0, (-1, len(tokens))) if chosen else None

    @torch.no_grad()
    def standardise(self) -> None:
        """Learn how far normal patches are from other normal images, if that is wanted.

        Not where there are no others, or where all distances are the same.
        """
        if self.beyond_pool is None:
            return
        found = []
        for image in range(len(self._tokens[0][-1])):
            other = self.without(image)
            if other is None:
                return
            own = [layer[-1][image : image + 1] for layer in self._tokens]
            distances = [nearest_distance(t, other._rows(n)[-1]) for n, t in enumerate(own)]
            found.append(torch.stack(distances)[:, 0])
        patches = torch.cat(found, dim=1)  # (L, n R)
        statistics = torch.stack([patches.mean(dim=1), patches.std(dim=1)])
        if bool((statistics[1] > 1e-6).all()):
            self.normal = statistics

    def forward(self, view: View) -> Evidence:
        """Compare every patch with the memory."""
        layers, last = len(view.scores.tokens), len(self._rows(0)) - 1
        to_scores = torch.stack(
            [nearest_distance(view.scores.tokens[n], self._rows(n)[last]) for n in range(layers)]
        )
        to_maps = to_scores
        if last:
            to_maps = torch.stack(
                [nearest_distance(view.maps.tokens[n], self._rows(n)[0]) for n in range(layers)]
            )
        if self.normal is None or self.beyond_pool is None:
            score = top_k_mean(normalised_distance(to_scores), self.pool)
        else:
            score = top_k_mean(standardised_distance(to_scores, self.normal), self.beyond_pool)
        drawn, weights = normalised_distance(to_maps), view.maps.weights
        if not view.parts:
            # Interpolation is linear: layers that nobody asks for are fused before it.
            drawn, weights = weigh(drawn, weights)[None], torch.ones_like(weights[:1])
        return Evidence(
            self.name,
            score,
            view.scores.weights,
            self.share,
            view.drawing.draw(drawn),
            weights,
            self.share,
            view.blocks,
        )

    def nearest(self, view: View, patch: int) -> list[Nearest]:
        """Find the rows nearest to one patch of one image."""
        found = []
        for number, block in enumerate(view.blocks):
            rows = self._rows(number)
            seen = [view.scores] if len(rows) == 1 else [view.maps, view.scores]
            names = ("both",) if len(rows) == 1 else BRANCHES
            for branch, (one, name) in enumerate(zip(seen, names, strict=True)):
                distance, row = nearest_rows(one.tokens[number][0, patch : patch + 1], rows[branch])
                known = self._original(number, branch, int(row[0]))
                found.append(Nearest(block, name, float(distance[0]), known))
        return found

    def _original(self, layer: int, branch: int, row: int) -> int:
        if self.origin is None:
            return row
        assert self.rows is not None
        if self.origin.shape != self.rows.shape[:3]:
            raise BundleError("The memory's origin does not fit its rows. Copy the bundle again.")
        found = int(self.origin[layer, branch, row])
        if found < 0:
            raise BundleError("The memory's origin has a negative number. Copy the bundle again.")
        return found

    def without(self, image: int) -> Self | None:
        """Return the memory as if one of its images were not remembered; None if nothing stays."""
        assert self.rows is not None
        layers, branches = self.rows.shape[:2]
        left = [[self._of_others(n, b, image) for b in range(branches)] for n in range(layers)]
        if not all(len(rows) for layer in left for rows in layer):
            return None  # a small coreset may hold nothing of the others
        other = copy.copy(self)
        other._left = left
        return other

    def _of_others(self, layer: int, branch: int, image: int) -> Tensor:
        assert self.rows is not None
        rows = self.rows[layer, branch]
        if self.origin is None:
            start = image * self.patches
            return torch.cat([rows[:start], rows[start + self.patches :]])
        if not self._tokens:
            return rows[self.origin[layer, branch] // self.patches != image]
        # While its tokens are at hand, whatever looks the same goes too, background above all.
        own = build_memory(self._tokens[layer][branch][image : image + 1])
        return rows[(rows @ own.T).amax(dim=-1) < SAME_ROW]

    def settle(self) -> None:
        """Let go of what only fitting needs."""
        self._tokens = []

    def lacking(self) -> str:
        """Name what a saved detector cannot do without."""
        return "" if self.rows is not None else "a memory"

    def _rows(self, layer: int) -> Sequence[Tensor]:
        """Rows (M, C) of the branches in one layer."""
        if self._left is not None:
            return self._left[layer]
        if self.rows is None:
            raise RuntimeError("The memory is empty: fit comes first.")
        return list(self.rows[layer].unbind(0))


def build_memory(tokens: Tensor) -> Tensor:
    """Unit rows of all patches of all images: (N, R, C) -> (M, C)."""
    return F.normalize(tokens.flatten(0, 1), dim=-1)


def choose_rows(tokens: Tensor, coreset: int | None) -> tuple[Tensor, Tensor | None]:
    """Choose the memory's rows; of a coreset also tell which of all patches they are: (M,)."""
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
    """Standardise distances by those of normal images, to 0..1: (L, B, R), (2, L) -> (L, B, R).

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
