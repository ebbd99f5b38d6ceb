"""Maps that follow the edges of their image: a guided filter, on cells of a few pixels.

A patch is fourteen pixels wide, and so is the rim of whatever a map marks. In a small window the
map is taken for a linear function of the image's grey values I, q = a · I + b, with a and b of
least squares and a penalty on a; what all windows around a pixel say about it is averaged. Where
map and image rise together the map takes the image's edge; where the image is flat it is smoothed.

a and b vary slowly, so they are found on cells of CELL_PX pixels and interpolated: I alone has its
full resolution. That costs a hundredth of the filter on pixels, and maps are as good. Everything is
linear in the map, so that the parts of a sum may be filtered one by one.
"""

from functools import lru_cache

import torch
from torch import Tensor

from recap.model.maps import cell_means

CELL_PX = 4
PENALTY = 1e-4
"""On a, for grey values in 0..1: contrasts far below its root, 0.01, are taken for flat."""


class Edges:
    """What the maps of some images (B, 3, S, S) follow; the same for all heads."""

    def __init__(self, pixels: Tensor, reach_px: float) -> None:
        self.grey = pixels.mean(dim=1)
        area, window, raised = _matrices(pixels.shape[-1], reach_px)
        self._window, self._raised = window.to(self.grey), raised.to(self.grey)
        self.cells = _both_ways(area.to(self.grey), self.grey)
        self._mean = self._windowed(self.cells)
        self._variance = self._windowed(self.cells.square()) - self._mean.square()

    def follow(self, maps: Tensor) -> Tensor:
        """Maps drawn on cells -> maps on pixels: (B, n, n) -> (B, S, S); of one image, any number.

        They may leave the range of what they were drawn from by a little.
        """
        mean, product = self._windowed(torch.stack([maps, self.cells * maps]))
        slope = (product - self._mean * mean) / (self._variance + PENALTY)
        offset = mean - slope * self._mean
        # Averaging over windows and interpolating are one matrix.
        slope, offset = _both_ways(self._raised, torch.stack([slope, offset]))
        return torch.addcmul(offset, slope, self.grey)

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
    """Along one side: mean over cells (n, S), mean over windows (n, n), and that mean at pixels
    (S, n). Windows end at the border; a cell that one holds in part counts in part."""
    count = cell_count(size_px)
    width = size_px / count
    pixel = torch.arange(size_px, dtype=torch.float64)
    cell = torch.arange(count, dtype=torch.float64)
    window = (reach_px / width + 0.5 - (cell[:, None] - cell).abs()).clamp(0, 1)
    window = window / window.sum(dim=1, keepdim=True)
    place = ((pixel + 0.5) / width - 0.5).clamp(0, count - 1)
    between = (1 - (place[:, None] - cell).abs()).clamp_min(0)
    return cell_means(size_px, count).float(), window.float(), (between @ window).float()
