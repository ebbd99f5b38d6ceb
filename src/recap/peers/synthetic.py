"""Synthetic anomalies on normal images: what MediCLIP is trained on instead of real lesions.

One of four tasks is drawn for an image, each with probability 1/4: a piece of another normal image
is pasted in, a region is brightened or darkened, a region is pushed apart from its middle, or
nothing is done. All that is drawn comes from the generator that is given.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from recap.peers.images import LabelledImages

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


Task = Callable[[Tensor, Tensor, Region, Generator], Tensor]
"""(image, another normal image, region, generator) -> the changed image."""


def draw_region(image: Tensor, generator: Generator) -> Region:
    """Somewhere on the tissue of an image (3, S, S)."""
    size = image.shape[-1]
    tissue = (image.amax(0) > BACKGROUND).flatten().nonzero().flatten()
    places = len(tissue) or size * size
    chosen = int(torch.randint(places, (), generator=generator))
    centre = divmod(int(tissue[chosen]) if len(tissue) else chosen, size)
    low, high = HALF_SIDES
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


def intensity_change(image: Tensor, donor: Tensor, region: Region, generator: Generator) -> Tensor:
    """Brighter or darker with a Gaussian profile, two standard deviations from middle to border."""
    low, high = AMPLITUDES
    amplitude = low + (high - low) * torch.rand((), generator=generator)
    sign = 1 if bool(torch.rand((), generator=generator) < 0.5) else -1
    profile = torch.exp(-2 * region.radius**2) * (region.radius < 1)
    return (image + sign * amplitude * profile).clamp(0, 1)


def source_deformation(
    image: Tensor, donor: Tensor, region: Region, generator: Generator
) -> Tensor:
    """Pushed outwards from the middle of the region; its border and what is beyond stay."""
    low, high = STRENGTHS
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


def identity(image: Tensor, donor: Tensor, region: Region, generator: Generator) -> Tensor:
    """Nothing: the image stays normal."""
    return image


TASKS: tuple[Task, ...] = (cut_paste, intensity_change, source_deformation, identity)


def synthesise(image: Tensor, donor: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """A normal image (3, S, S), maybe made abnormal, and where it visibly changed (S, S)."""
    task = TASKS[int(torch.randint(len(TASKS), (), generator=generator))]
    changed = task(image, donor, draw_region(image, generator), generator)
    return changed, (changed - image).abs().amax(0) > VISIBLE


def draw_variant(images: LabelledImages, index: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """`synthesise` on one of the images, the donor drawn from the normal ones of its domain."""
    fits = ~images.abnormal & (images.domain == images.domain[index])
    donors = fits.nonzero().flatten().tolist()
    others = [donor for donor in donors if donor != index] or [index]
    donor = others[int(torch.randint(len(others), (), generator=generator))]
    return synthesise(images.pixels(index), images.pixels(donor), generator)


def variant_bank(images: LabelledImages, copies: int, seed: int) -> LabelledImages:
    """A fixed set of variants of every normal image, those of one image together.

    Each depends on the seed and its own position alone and is made anew whenever it is asked for:
    pools of other domains do not fit into memory.
    """
    normal = images.positions(abnormal=False)

    def variant(position: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed((seed * 1_000_003 + position) % 2**63)
        return draw_variant(images, normal[position // copies], generator)

    masks = torch.stack([variant(position)[1] for position in range(copies * len(normal))])
    index = torch.tensor(normal).repeat_interleave(copies)
    return LabelledImages(
        lambda position: variant(position)[0],
        masks.flatten(1).any(1),
        masks,
        torch.ones(len(masks), dtype=torch.bool),
        images.origin[index],
        images.domain[index],
        images.domains,
    )
