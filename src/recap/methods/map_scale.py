"""How strongly the maps of a method are drawn: fixed at fitting, from its normal images.

An image that is in a memory is at distance nought from itself, so its own map says nothing. Where
there is a memory, each normal image is therefore compared with what is left of it without the
image's own rows, copies included. Of a single image nothing would be left: it is compared turned or
mirrored, in a way that no remembered copy is.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recap.methods.images import LabelledImages
from recap.methods.recap.scorer import Scorer
from recap.training.support import spread_over

MOST_IMAGES = 16


def scale_of(maps: list[Tensor]) -> tuple[float, float]:
    """Map values drawn from nothing to full strength, from maps (1, S, S) of normal images.

    From the 90th percentile of normal pixels to where the most abnormal of them would be if it
    were as far above again.
    """
    low, high = np.quantile(torch.cat(maps).cpu().numpy(), (0.90, 1.0))
    return float(low), float(high + max(high - low, 1e-3))


def _some_normal(images: LabelledImages) -> list[int]:
    """From all over the list: the first of it may be of a single domain, or of a single patient."""
    normal = images.positions(abnormal=False)
    return [normal[number] for number in spread_over(len(normal), MOST_IMAGES)]


@torch.no_grad()
def scale_of_images(model: Scorer, images: LabelledImages) -> tuple[float, float]:
    """For methods without a memory: maps of the normal images as they are."""
    chosen = _some_normal(images)
    return scale_of([model(images.stack([index]).to(model.device)).map for index in chosen])


@torch.no_grad()
def scale_without_own_rows(
    model: Any, images: LabelledImages, owner: Tensor
) -> tuple[float, float]:
    """For maps that are partly distances to a memory.

    `model` is a Scorer with a `memory` (..., M, C); `owner` says which image each row comes from.
    """
    whole: Tensor = model.memory
    maps = []
    try:
        for index in _some_normal(images):
            others = (owner != images.origin[index]).to(whole.device)
            pixels = images.stack([index]).to(model.device)
            if others.any():
                model.memory = whole[..., others, :]
            else:
                pixels = pixels.flip(2, 3)
            maps.append(model(pixels).map)
    finally:
        model.memory = whole
    return scale_of(maps)


@torch.no_grad()
def held_out_scale(
    tokens: Tensor,
    mirrored: Callable[[], Tensor],
    memory: Tensor,
    owner: Tensor,
    map_of: Callable[[Tensor, Tensor], Tensor],
) -> tuple[float, float]:
    """For maps that are distances to a memory and nothing else.

    Args:
        tokens: Of the normal images, (K, R, C).
        mirrored: Tokens (1, R, C) of the first one's mirror image.
        owner: Which image each row of the memory comes from, (M,).
        map_of: Tokens (1, R, C) and a memory -> map (1, S, S).
    """
    maps = []
    for index in spread_over(len(tokens), MOST_IMAGES):
        others = memory[owner.to(memory.device) != index]
        if len(others):  # a small coreset may be made of one image's patches
            maps.append(map_of(tokens[index : index + 1], others))
    return scale_of(maps or [map_of(mirrored(), memory)])
