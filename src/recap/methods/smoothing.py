"""Gaussian smoothing of maps on the model's own device."""

import torch
import torch.nn.functional as F
from torch import Tensor

from recap.encoders.vit import Encoder
from recap.methods.recap.maps import upsample

TRUNCATE = 4.0
"""Standard deviations to either side, as scipy's filter has it."""


def smooth_map(values: Tensor, encoder: Encoder, sigma_px: float) -> Tensor:
    """Values of patches (B, R) -> smoothed map (B, S, S); a sigma of 0 smooths nothing."""
    maps = upsample(values, encoder.input_px, encoder.patch_px, "centres")
    return gaussian_smooth(maps, sigma_px) if sigma_px > 0 else maps


def gaussian_smooth(maps: Tensor, sigma_px: float) -> Tensor:
    """(B, S, S) -> (B, S, S); what lies outside is mirrored, the edge pixel included."""
    radius = int(TRUNCATE * sigma_px + 0.5)
    offsets = torch.arange(-radius, radius + 1, dtype=maps.dtype, device=maps.device)
    kernel = torch.exp(-0.5 * (offsets / sigma_px) ** 2)
    kernel = kernel / kernel.sum()
    return _along_rows(_along_rows(maps, kernel).mT, kernel).mT


def _along_rows(maps: Tensor, kernel: Tensor) -> Tensor:
    size, radius = maps.shape[-1], len(kernel) // 2
    # Positions of a row that is mirrored again and again: 2 1 0 | 0 1 2 | 2 1 0
    wave = torch.arange(-radius, size + radius, device=maps.device) % (2 * size)
    padded = maps[..., torch.where(wave < size, wave, 2 * size - 1 - wave)]
    return F.conv1d(padded.flatten(0, -2).unsqueeze(1), kernel.view(1, 1, -1)).view(maps.shape)
