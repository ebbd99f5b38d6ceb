"""MadCLIP's sixteen copies: the benchmark's eleven, four zooms and one change of colour."""

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from recap.data.augment import COPIES, augment
from recap.methods.images import LabelledImages

ZOOMS = (1.1, 1.15, 1.2, 1.3)
JITTER = 0.2
"""Brightness and contrast are each multiplied by 1 ± this at most."""
JITTER_SEED = 111
GREY = (0.299, 0.587, 0.114)
SIXTEEN = COPIES + len(ZOOMS) + 1


def with_sixteen_copies(images: LabelledImages) -> LabelledImages:
    """Sixteen fixed copies of every image, those of one image together."""
    pixels, masks = images.stack(range(len(images))), images.masks
    copies, marks = augment(pixels, masks)
    groups = [(copies.unflatten(0, (-1, COPIES)), marks.unflatten(0, (-1, COPIES)))]
    singles = [*(zoom(pixels, masks, factor) for factor in ZOOMS), (jitter(pixels), masks)]
    groups += [(image[:, None], mask[:, None]) for image, mask in singles]
    all_pixels, all_masks = (torch.cat(parts, dim=1) for parts in zip(*groups, strict=True))
    return images.repeated(all_pixels.flatten(0, 1), all_masks.flatten(0, 1), SIXTEEN)


def zoom(pixels: Tensor, masks: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """The middle of images (N, 3, S, S) and masks (N, S, S), magnified."""
    stacked = torch.cat([pixels, masks.unsqueeze(1).to(pixels.dtype)], dim=1)
    theta = stacked.new_tensor([[1 / factor, 0, 0], [0, 1 / factor, 0]])
    grid = affine_grid(theta.expand(len(stacked), 2, 3), list(stacked.shape), align_corners=False)
    magnified = grid_sample(stacked, grid, mode="bilinear", align_corners=False)
    return magnified[:, :3], magnified[:, 3] > 0.5


def jitter(pixels: Tensor) -> Tensor:
    """Brightness and contrast of (N, 3, S, S), all alike, from a seed that never changes."""
    generator = torch.Generator().manual_seed(JITTER_SEED)
    brightness, contrast = 1 + JITTER * (2 * torch.rand(2, generator=generator) - 1)
    bright = brightness * pixels
    middle = _grey(bright).mean(dim=(2, 3), keepdim=True)
    return (middle + contrast * (bright - middle)).clamp(0, 1)


def _grey(pixels: Tensor) -> Tensor:
    return (pixels * pixels.new_tensor(GREY).view(3, 1, 1)).sum(dim=1, keepdim=True)
