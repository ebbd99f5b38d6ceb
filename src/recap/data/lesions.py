"""Lesions made up on normal images, where there are no real ones to learn from.

A piece of another normal image is pasted in, a region is brightened or darkened, or a region is
pushed apart from its middle. All that is drawn comes from the generator that is given.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

HALF_SIDES = (0.05, 0.20)
"""Half the height and width of a region, as parts of the image's side."""
FEATHER = 0.1
"""Part of a pasted piece's radius over which it fades into the image."""
AMPLITUDES = (0.2, 0.6)
STRENGTHS = (0.5, 1.5)
"""Exponents of the radius: how strongly a region is pushed apart."""
BACKGROUND = 0.05
"""Darker pixels are not tissue; regions are not centred on them unless there is nothing else."""
VISIBLE = 0.02
"""Only pixels that changed by more are marked: air pasted on air is not an anomaly."""


@dataclass(frozen=True)
class Region:
    """A turned ellipse or box."""

    radius: Tensor  # (S, S): 0 in the middle, 1 on the border
    centre_px: tuple[float, float]
    """Row and column."""


Lesion = Callable[[Tensor, Tensor, Region, Generator], Tensor]
"""(image, another normal image, region, generator) -> the changed image."""


Range = tuple[float, float]


def draw_region(image: Tensor, generator: Generator, half_sides: Range = HALF_SIDES) -> Region:
    """Somewhere on the tissue of an image (3, S, S)."""
    size = image.shape[-1]
    tissue = (image.amax(0) > BACKGROUND).flatten().nonzero().flatten()
    places = len(tissue) or size * size
    chosen = int(torch.randint(places, (), generator=generator))
    centre = divmod(int(tissue[chosen]) if len(tissue) else chosen, size)
    low, high = half_sides
    height, width = (size * (low + (high - low) * torch.rand(2, generator=generator))).tolist()
    angle = torch.pi * torch.rand((), generator=generator)
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    down, right = rows - centre[0], columns - centre[1]
    along = (down * angle.cos() + right * angle.sin()) / height
    across = (right * angle.cos() - down * angle.sin()) / width
    box = bool(torch.rand((), generator=generator) < 0.5)
    radius = torch.maximum(along.abs(), across.abs()) if box else torch.hypot(along, across)
    return Region(radius, (float(centre[0]), float(centre[1])))


def cut_paste(image: Tensor, donor: Tensor, region: Region, generator: Generator) -> Tensor:
    """A piece of another normal image, from any place of it, with faded edges."""
    shift = torch.randint(image.shape[-1], (2,), generator=generator).tolist()
    weight = ((1 - region.radius) / FEATHER).clamp(0, 1)
    return image + weight * (donor.roll(shift, dims=(1, 2)) - image)


def intensity_change(
    image: Tensor,
    donor: Tensor,
    region: Region,
    generator: Generator,
    amplitudes: Range = AMPLITUDES,
) -> Tensor:
    """Brighter or darker with a Gaussian profile, two standard deviations from middle to border."""
    low, high = amplitudes
    amplitude = low + (high - low) * torch.rand((), generator=generator)
    sign = 1 if bool(torch.rand((), generator=generator) < 0.5) else -1
    profile = torch.exp(-2 * region.radius**2) * (region.radius < 1)
    return (image + sign * amplitude * profile).clamp(0, 1)


def source_deformation(
    image: Tensor,
    donor: Tensor,
    region: Region,
    generator: Generator,
    strengths: Range = STRENGTHS,
) -> Tensor:
    """Pushed outwards from the middle of the region; its border and what is beyond stay."""
    low, high = strengths
    strength = low + (high - low) * torch.rand((), generator=generator)
    size = image.shape[-1]
    pull = region.radius.clamp(max=1) ** strength  # (S, S): what part of the way out is looked up
    places = torch.arange(size, dtype=image.dtype)
    row, column = region.centre_px
    rows = row + (places[:, None] - row) * pull
    columns = column + (places - column) * pull
    grid = (2 * torch.stack([columns, rows], dim=-1) + 1) / size - 1  # (S, S, 2), x first
    moved = F.grid_sample(image[None], grid[None], padding_mode="border", align_corners=False)[0]
    return torch.where(region.radius < 1, moved, image)


def visibly_changed(changed: Tensor, image: Tensor) -> Tensor:
    """Mark where an image (3, S, S) is no longer what it was: (S, S)."""
    return (changed - image).abs().amax(0) > VISIBLE


LESIONS: tuple[Lesion, ...] = (intensity_change, cut_paste, source_deformation)
