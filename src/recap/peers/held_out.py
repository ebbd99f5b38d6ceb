"""How strongly the maps of a memory of normal images are drawn.

An image that is in the memory is at distance nought from itself, so its own map says nothing. Each
normal image is therefore compared with a memory from which its own patches are left out; a single
image, of which nothing would be left, is compared by its mirror image.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from recap.peers.images import LabelledImages

MOST_IMAGES = 16


@torch.no_grad()
def held_out_scale(
    tokens: Tensor,
    mirrored: Callable[[], Tensor],
    memory: Tensor,
    owner: Tensor,
    map_of: Callable[[Tensor, Tensor], Tensor],
) -> tuple[float, float]:
    """Map values drawn from nothing to full strength.

    Args:
        tokens: Of the normal images, (K, R, C).
        mirrored: Tokens (1, R, C) of the first one's mirror image.
        owner: Which image each row of the memory comes from, (M,).
        map_of: Tokens (1, R, C) and a memory -> map (1, S, S).
    """
    maps = []
    for index in range(min(len(tokens), MOST_IMAGES)):
        others = memory[owner.to(memory.device) != index]
        if len(others):  # a small coreset may be made of one image's patches
            maps.append(map_of(tokens[index : index + 1], others))
    return scale_of(maps or [map_of(mirrored(), memory)])


def scale_of(maps: list[Tensor]) -> tuple[float, float]:
    """From the 90th percentile of normal pixels to where the most abnormal of them would be if it
    were as far above again."""
    low, high = np.quantile(torch.cat(maps).cpu().numpy(), (0.90, 1.0))
    return float(low), float(high + max(high - low, 1e-3))


def only_normal(images: LabelledImages) -> LabelledImages:
    """The normal images of a set, for methods that learn from nothing else."""
    chosen = images.positions(abnormal=False)
    return replace(
        images,
        pixels=lambda index: images.pixels(chosen[index]),
        abnormal=images.abnormal[chosen],
        masks=images.masks[chosen],
        has_mask=images.has_mask[chosen],
        origin=images.origin[chosen],
        domain=images.domain[chosen],
    )
