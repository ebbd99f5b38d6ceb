"""Gaussian smoothing of maps on the model's own device."""

import torch
import torch.nn.functional as F
from torch import Tensor

TRUNCATE = 4.0
"""Standard deviations to either side, as scipy's filter has it."""


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
