"""Steps shared by methods on an untouched encoder: patch tokens after any of its blocks, turned
copies of an image, and maps smoothed by a Gaussian."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from recap.encoders.vit import Encoder
from recap.errors import SettingsError
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


def checked_layers(layers: Sequence[int], encoder: Encoder) -> tuple[int, ...]:
    """Return the layers as they are, unless they do not exist or do not ascend."""
    if list(layers) == sorted({*layers} & {*range(1, encoder.depth + 1)}) and layers:
        return tuple(layers)
    given = f"options.layers = {list(layers)}"
    raise _no_such(given, "some of them in ascending order", encoder)


def checked_layer(layer: int, encoder: Encoder) -> tuple[int, ...]:
    """Return the layer as it is, unless it does not exist."""
    if 1 <= layer <= encoder.depth:
        return (layer,)
    raise _no_such(f"options.layer = {layer}", "one of them", encoder)


def _no_such(given: str, wanted: str, encoder: Encoder) -> SettingsError:
    return SettingsError(f"{given}: {encoder.name} has blocks 1 to {encoder.depth}; give {wanted}.")


def layer_tokens(encoder: Encoder, pixels: Tensor, layers: Sequence[int]) -> Tensor:
    """Patch tokens after some blocks (counted from 1): (B, 3, S, S) -> (B, L, R, width)."""
    if set(layers) <= set(encoder.layers):  # taps may have been kept from another fit
        return encoder.taps(pixels)[:, [encoder.layers.index(layer) for layer in layers]]
    return encoder.hidden(pixels, tuple(layers))[:, :, encoder.prefix_tokens :]
