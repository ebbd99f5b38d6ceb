"""What MediCLIP is trained on instead of real lesions: variants of normal images.

One of four tasks is drawn for an image, each with probability 1/4: one of the lesions of
`recap.data.lesions` with MediCLIP's own sizes, in one place or in two; or nothing.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Generator, Tensor

from recap.data.lesions import (
    Lesion,
    Range,
    Region,
    cut_paste,
    draw_region,
    intensity_change,
    source_deformation,
    visibly_changed,
)
from recap.methods.images import LabelledImages


def identity(image: Tensor, donor: Tensor, region: Region, generator: Generator) -> Tensor:
    """Nothing: the image stays normal."""
    return image


@dataclass(frozen=True)
class Task:
    """A lesion, and half the sides of its regions as parts of the image's."""

    lesion: Lesion
    half_sides: Range


TASKS = (
    Task(cut_paste, (0.05, 0.30)),
    Task(partial(intensity_change, amplitudes=(0.4, 0.6)), (0.15, 0.40)),
    # Published as magnified by 2^0.5 to 2^2 in the middle; the exponent of the radius is one less.
    Task(partial(source_deformation, strengths=(0.41, 3.0)), (0.10, 0.30)),
    Task(identity, (0.05, 0.30)),
)
SECOND = 0.5
"""Probability of a second region."""


def synthesise(image: Tensor, donor: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """A normal image (3, S, S), maybe made abnormal, and where it visibly changed (S, S)."""
    task = TASKS[int(torch.randint(len(TASKS), (), generator=generator))]
    regions = 2 if float(torch.rand((), generator=generator)) < SECOND else 1
    changed = image
    for _ in range(regions):
        region = draw_region(image, generator, task.half_sides)
        changed = task.lesion(changed, donor, region, generator)
    return changed, visibly_changed(changed, image)


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
        torch.arange(copies).repeat(len(normal)),
    )
