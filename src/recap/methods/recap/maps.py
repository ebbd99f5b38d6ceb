"""From the patch grid to the input's pixels.

Bilinear interpolation on a square grid is separable and linear, so it is one small matrix applied
to rows and to columns. It is applied to the margin φ rather than to two logits and a softmax: the
softmax of two interpolated logits depends on their difference alone.
"""

from functools import lru_cache

import torch
from torch import Tensor

from recap.config import Upsample
from recap.methods.recap.logits import full


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
