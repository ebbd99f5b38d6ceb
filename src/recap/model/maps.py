"""From the patch grid to the input's pixels.

Bilinear interpolation on a square grid is separable and linear, so it is one small matrix applied
to rows and to columns. It is applied to the margin φ rather than to two logits and a softmax: the
softmax of two interpolated logits depends on their difference alone.
"""

from functools import lru_cache

import torch
from torch import Tensor

from recap.config import Upsample


def upsample(values: Tensor, size_px: int, patch_px: int, mode: Upsample) -> Tensor:
    """Patch values (..., R) -> map (..., S, S)."""
    grid = round(values.shape[-1] ** 0.5)
    matrix = interpolation_matrix(grid, size_px, patch_px, mode)
    matrix = matrix.to(device=values.device, dtype=values.dtype)
    return matrix @ values.unflatten(-1, (grid, grid)) @ matrix.T


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # a cached inference tensor could not serve training later
def interpolation_matrix(grid: int, size_px: int, patch_px: int, mode: Upsample) -> Tensor:
    """(S, grid) weights: row p says which patches pixel p lies between.

    `centres`: patch i covers pixels patch_px·i .. patch_px·(i+1) − 1, so its value stands at their
    middle, and the border, the last pixels that no patch covers included, takes the nearest
    patch's value. `corners`: the outer patches stand on the border (`align_corners=True`), which
    shifts a lesion by up to half a patch near the border.
    """
    pixel = torch.arange(size_px, dtype=torch.float64)
    if mode == "corners":
        position = pixel * (grid - 1) / (size_px - 1)
    else:
        position = (pixel + 0.5) / patch_px - 0.5
    position = position.clamp(0, grid - 1)
    distance = (position[:, None] - torch.arange(grid, dtype=torch.float64)).abs()
    return (1 - distance).clamp_min(0).float()
