"""The eleven fixed copies of few-shot fitting; nothing is random here."""

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

COPIES = 11
ROTATIONS_DEG = (22.5, -22.5, 11.25, -11.25)
# 12 px of 240, as a part of the side.
SHIFT = 1 / 20
SHIFTS_XY = ((SHIFT, SHIFT), (SHIFT, -SHIFT), (-SHIFT, SHIFT), (-SHIFT, -SHIFT))


def augment(images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Return eleven copies of each image (N, 3, S, S) and mask (N, S, S) through the same warps.

    The copies of image i stand together from index 11·i on: identity; rotations by +22.5, −22.5,
    +11.25 and −11.25 degrees (positive turns counter-clockwise); shifts by a twentieth of the
    side to lower right, upper right, lower left and upper left; left-right and upside-down flip.
    What lies outside is reflected, and a warped mask is true above one half.
    """
    stacked = torch.cat([images, masks.unsqueeze(1).to(images.dtype)], dim=1)  # (N, 4, S, S)
    copies = [stacked, *(_warp(stacked, matrix) for matrix in _matrices())]
    copies += [stacked.flip(3), stacked.flip(2)]
    ordered = torch.stack(copies, dim=1).flatten(0, 1)  # (N * 11, 4, S, S)
    return ordered[:, :3].contiguous(), ordered[:, 3] > 0.5


def _matrices() -> list[list[list[float]]]:
    """Map output to input positions in units of half the side, x to the right and y down."""
    turns = [(math.cos(math.radians(a)), math.sin(math.radians(a))) for a in ROTATIONS_DEG]
    rotations = [[[c, -s, 0.0], [s, c, 0.0]] for c, s in turns]
    shifts = [[[1.0, 0.0, -2 * x], [0.0, 1.0, -2 * y]] for x, y in SHIFTS_XY]
    return rotations + shifts


def _warp(stacked: Tensor, matrix: list[list[float]]) -> Tensor:
    theta = stacked.new_tensor(matrix).expand(len(stacked), 2, 3)
    grid = affine_grid(theta, list(stacked.shape), align_corners=False)
    return grid_sample(
        stacked, grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )
