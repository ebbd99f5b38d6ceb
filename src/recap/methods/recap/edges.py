"""Maps that follow the edges of their image: a guided filter, on cells of a few pixels.

A patch is fourteen pixels wide, and so is the rim of whatever a map marks. In a small window the
map is taken for a linear function of the image's grey values I, q = a · I + b, with a and b of
least squares and a penalty on a; what all windows around a place say about it is averaged. Where
map and image rise together the map takes the image's edge; where the image is flat it is smoothed.

Everything is done on cells of CELL_PX pixels, between which the map is interpolated: noise of
single pixels would else be in the map, and tear what it marks into many small regions. It is linear
in the map, so that the parts of a sum may be filtered one by one.
"""

from functools import lru_cache

import torch
from torch import Tensor

from recap.methods.recap.maps import cell_means

CELL_PX = 4
PENALTY = 1e-4
"""The penalty on a, for grey values in 0..1: contrasts far below its root, 0.01, count as flat."""


class Edges:
    """What the maps of some images (B, 3, S, S) follow; the same for all heads."""

    def __init__(self, pixels: Tensor, reach_px: float) -> None:
        area, window, between = _matrices(pixels.shape[-1], reach_px)
        self._window, self._between = window.to(pixels), between.to(pixels)
        self.cells = _both_ways(area.to(pixels), pixels.mean(dim=1))
        self._mean, square = self._windowed(torch.stack([self.cells, self.cells.square()]))
        self._variance = square - self._mean.square()

    def follow(self, maps: Tensor) -> Tensor:
        """Maps drawn on cells -> maps on pixels: (B, n, n) -> (B, S, S); of one image, any number.

        They may leave the range of what they were drawn from by a little.
        """
        mean, product = self._windowed(torch.stack([maps, self.cells * maps]))
        slope = (product - self._mean * mean) / (self._variance + PENALTY)
        slope, offset = self._windowed(torch.stack([slope, mean - slope * self._mean]))
        return _both_ways(self._between, slope * self.cells + offset)

    def _windowed(self, values: Tensor) -> Tensor:
        return _both_ways(self._window, values)


def find_edges(pixels: Tensor, reach_px: float) -> Edges | None:
    """What maps of these images follow; nothing where the reach is 0."""
    return Edges(pixels, reach_px) if reach_px else None


def finish_map(maps: Tensor, edges: Edges | None) -> Tensor:
    """Maps on pixels, in 0..1, from maps as they were drawn."""
    return maps if edges is None else edges.follow(maps).clamp(0, 1)


def cell_count(size_px: int) -> int:
    """Cells along a side of the input."""
    return max(1, round(size_px / CELL_PX))


def _both_ways(matrix: Tensor, values: Tensor) -> Tensor:
    return matrix @ values @ matrix.T


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # a cached inference tensor could not serve training later
def _matrices(size_px: int, reach_px: float) -> tuple[Tensor, Tensor, Tensor]:
    """Along one side: mean over cells (n, S), mean over windows (n, n), and between cells (S, n).
    A cell that a window holds in part counts in part; beyond the border image and map go on as they
    are there, or the peak of a lesion near it would move outwards."""
    count = cell_count(size_px)
    width = size_px / count
    pixel = torch.arange(size_px, dtype=torch.float64)
    cell = torch.arange(count, dtype=torch.float64)
    outside = torch.arange(-int(reach_px / width) - 1, count + int(reach_px / width) + 1)
    held = (reach_px / width + 0.5 - (outside - cell[:, None]).abs()).clamp(0, 1)
    held /= held.sum(dim=1, keepdim=True)
    window = torch.zeros(count, count, dtype=torch.float64)
    window.index_add_(1, outside.clamp(0, count - 1), held)
    place = ((pixel + 0.5) / width - 0.5).clamp(0, count - 1)
    between = (1 - (place[:, None] - cell).abs()).clamp_min(0)
    return cell_means(size_px, count).float(), window.float(), between.float()
