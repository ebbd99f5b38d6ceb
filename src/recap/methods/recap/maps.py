"""From the patch grid to the input's pixels, along the edges of the image.

Bilinear interpolation on a square grid is separable and linear, so it is one small matrix applied
to rows and to columns. It is applied to the margin φ rather than to two logits and a softmax: the
softmax of two interpolated logits depends on their difference alone.

A patch is fourteen pixels wide, and so is the rim of whatever a map marks. A guided filter moves it
to the edge: in a small window the map is taken for a linear function of the image's grey values I,
q = a · I + b, with a and b of least squares and a penalty on a; what all windows around a place say
about it is averaged. Where map and image rise together the map takes the image's edge; where the
image is flat it is smoothed. That is done on cells of CELL_PX pixels, between which the map is
interpolated: noise of single pixels would else be in the map, and tear what it marks into many
small regions. It is linear in the map, so that the parts of a sum may be filtered one by one.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from recap.methods.recap.prototypes import full
from recap.methods.recap.settings import Upsample

CELL_PX = 4
PENALTY = 1e-4
"""The penalty on a, for grey values in 0..1: contrasts far below its root, 0.01, count as flat."""


@dataclass(frozen=True)
class Drawing:
    """A way of drawing patch values as a map: (..., R) -> (..., S, S)."""

    input_px: int
    patch_px: int
    mode: Upsample
    blur_px: float = 0.0
    edge_px: float = 0.0
    """Half the width of the window in which maps follow edges; 0 is none."""

    def draw(self, values: Tensor) -> Tensor:
        """Patch values on pixels or, where maps follow edges, on cells: (..., R) -> (..., n, n)."""
        cells = cell_count(self.input_px) if self.edge_px else None
        return upsample(values, self.input_px, self.patch_px, self.mode, self.blur_px, cells)

    def draw_plainly(self, values: Tensor) -> Tensor:
        """Draw a map as losses see it, with neither blur nor edges: (..., R) -> (..., S, S)."""
        return upsample(values, self.input_px, self.patch_px, self.mode)

    def weights(self, grid: int) -> Tensor:
        """Between which patches each pixel of a row lies, without any blur: (S, grid)."""
        return interpolation_matrix(grid, self.input_px, self.patch_px, self.mode)

    def on_pixels(self, maps: Tensor, pixels: Tensor) -> Tensor:
        """Maps as they were drawn -> (B, S, S); of one image, any number. Linear."""
        return Edges(pixels, self.edge_px).follow(maps) if self.edge_px else maps

    def finish(self, maps: Tensor, pixels: Tensor) -> Tensor:
        """Bring drawn maps to pixels in 0..1; following an edge may leave that range a little."""
        return self.on_pixels(maps, pixels).clamp(0, 1) if self.edge_px else maps


def upsample(
    values: Tensor,
    size_px: int,
    patch_px: int,
    mode: Upsample,
    blur_px: float = 0.0,
    cells: int | None = None,
) -> Tensor:
    """Patch values (..., R) -> map (..., S, S), or its mean over n × n cells (..., n, n)."""
    grid = round(values.shape[-1] ** 0.5)
    matrix = interpolation_matrix(grid, size_px, patch_px, mode, blur_px, cells)
    # Never in half precision: σ of a margin above 6 would be 1.0 and have no gradient.
    with torch.autocast(values.device.type, enabled=False):
        values = full(values)
        matrix = matrix.to(device=values.device, dtype=values.dtype)
        return matrix @ values.unflatten(-1, (grid, grid)) @ matrix.T


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # a cached inference tensor could not serve training later
def interpolation_matrix(
    grid: int,
    size_px: int,
    patch_px: int,
    mode: Upsample,
    blur_px: float = 0.0,
    cells: int | None = None,
) -> Tensor:
    """(S, grid) weights: row p says which patches pixel p lies between.

    `centres`: patch i covers pixels patch_px·i .. patch_px·(i+1) − 1, so its value stands at their
    middle, and the border, the last pixels that no patch covers included, takes the nearest
    patch's value. `corners`: the outer patches stand on the border (`align_corners=True`), which
    shifts a lesion by up to half a patch near the border.

    A Gaussian blur of the map is separable and linear too: it is in the matrix and costs nothing.
    So is the mean over cells of pixels, if there are any: (n, grid).
    """
    pixel = torch.arange(size_px, dtype=torch.float64)
    if mode == "corners":
        position = pixel * (grid - 1) / (size_px - 1)
    else:
        position = (pixel + 0.5) / patch_px - 0.5
    position = position.clamp(0, grid - 1)
    distance = (position[:, None] - torch.arange(grid, dtype=torch.float64)).abs()
    weights = (1 - distance).clamp_min(0)
    if blur_px > 0:
        # Beyond the outer patches a map stays as it is at them: a blur that went on to the border
        # would move the peak of a lesion there.
        half = (patch_px - 1) / 2
        outer = (half, patch_px * (grid - 1) + half) if mode == "centres" else (0, size_px - 1)
        weights = _gaussian(pixel.clamp(*outer), blur_px) @ weights
    if cells is not None:
        weights = cell_means(size_px, cells) @ weights
    return weights.float()


def cell_means(size_px: int, cells: int) -> Tensor:
    """(n, S) weights: row i is the mean over the i-th of n equal parts of S pixels."""
    width = size_px / cells
    pixel = torch.arange(size_px, dtype=torch.float64)
    start = width * torch.arange(cells, dtype=torch.float64)[:, None]
    inside = torch.minimum(pixel + 1, start + width) - torch.maximum(pixel, start)
    return inside.clamp_min(0) / width


def _gaussian(places: Tensor, deviation_px: float) -> Tensor:
    """(S, S) blur of a row of S pixels, for each of S places between them; beyond the border the
    row goes on as its last pixel."""
    size_px, reach = len(places), int(6 * deviation_px) + 1
    outside = torch.arange(-reach, size_px + reach, dtype=torch.float64)
    kernel = torch.exp(-0.5 * ((outside - places[:, None]) / deviation_px) ** 2)
    kernel /= kernel.sum(dim=1, keepdim=True)
    inside = outside.clamp(0, size_px - 1).long()
    return torch.zeros(size_px, size_px, dtype=torch.float64).index_add_(1, inside, kernel)


class Edges:
    """The edges of some images (B, 3, S, S), which their maps follow; the same for all heads."""

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
