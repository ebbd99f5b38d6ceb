"""Turned copies of an image."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def rotate(pixels: Tensor, degrees: float) -> Tensor:
    """Turn an image (3, S, S) counter-clockwise about its middle; what lies outside is mirrored."""
    if degrees % 90 == 0:
        return torch.rot90(pixels, round(degrees / 90), (-2, -1))
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # Output to input positions, x to the right and y down.
    matrix = pixels.new_tensor([[[cos, -sin, 0.0], [sin, cos, 0.0]]])
    grid = F.affine_grid(matrix, [1, *pixels.shape], align_corners=False)
    return F.grid_sample(
        pixels[None], grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )[0]
