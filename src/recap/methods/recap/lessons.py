"""Lesions made up on normal images, to teach adapters where no real lesion was given."""

from dataclasses import replace

import torch
from torch import Generator, Tensor

from recap.data.lesions import LESIONS, Lesion, draw_region, visibly_changed
from recap.data.support import spread_over
from recap.methods.images import LabelledImages

MOST_TEACHING = 4
"""Images that get lesions, spread over all that are given. More take longer, and what adapters then
learn is made-up lesions rather than lesions: scores of real ones get worse."""

TRIES = 20
"""Places tried for a lesion; on the last one it stays, however little of it can be seen."""
SMALLEST = 1e-3
"""Share of the image that a lesion must visibly change: about half a patch."""


def with_lesions(images: LabelledImages, seed: int) -> tuple[LabelledImages, list[int]]:
    """Return all images and, after them, copies of some normal ones with a lesion on each.

    Returns also where those copies of normal images and their lesions are.
    """
    origins = images.origin[~images.abnormal].unique().tolist()
    chosen = [origins[number] for number in spread_over(len(origins), MOST_TEACHING)]
    made_on = [
        i for origin in chosen for i in (images.origin == origin).nonzero().flatten().tolist()
    ]
    pixels, masks = make_lesions(images.stack(made_on), len(made_on) // len(chosen), seed)
    normal, count = images.some(made_on), len(images)

    def picture(index: int) -> Tensor:
        return images.pixels(index) if index < count else pixels[index - count]

    both = replace(
        images,
        pixels=picture,
        abnormal=torch.cat([images.abnormal, torch.ones_like(normal.abnormal)]),
        masks=torch.cat([images.masks, masks]),
        has_mask=torch.cat([images.has_mask, torch.ones_like(normal.has_mask)]),
        origin=torch.cat([images.origin, normal.origin]),
        domain=torch.cat([images.domain, normal.domain]),
        copy=torch.cat([images.copy, normal.copy]),
    )
    return both, [*made_on, *range(count, len(both))]


def make_lesions(pixels: Tensor, copies: int, seed: int) -> tuple[Tensor, Tensor]:
    """Every image once more with a lesion on it, and where that is.

    `pixels` (N, 3, S, S) are normal images, the `copies` of each together. The kinds of lesions
    take turns; what is pasted comes from another image where there is one. The seed decides the
    rest, so that seeds of a fit also tell how much depends on which lesions there were.
    """
    generator = Generator().manual_seed(seed)
    changed, masks = [], []
    for index, image in enumerate(pixels):
        others = [i for i in range(len(pixels)) if i // copies != index // copies]
        donors = others or list(range(len(pixels)))  # all, if all are copies of one image
        kind = LESIONS[index % len(LESIONS)]
        lesion, mask = _visible_lesion(kind, image, pixels, donors, generator)
        changed.append(lesion)
        masks.append(mask)
    return torch.stack(changed), torch.stack(masks)


def _visible_lesion(
    kind: Lesion, image: Tensor, pixels: Tensor, donors: list[int], generator: Generator
) -> tuple[Tensor, Tensor]:
    """Make a lesion that covers enough pixels: air pasted on air cannot be seen."""
    for _ in range(TRIES):
        donor = pixels[donors[int(torch.randint(len(donors), (), generator=generator))]]
        changed = kind(image, donor, draw_region(image, generator), generator)
        mask = visibly_changed(changed, image)
        if float(mask.float().mean()) >= SMALLEST:
            break
    return changed, mask
