"""How strongly maps are drawn that are partly distances to remembered images.

An image that is remembered is at distance nought from itself, so each normal image is looked at
without its own rows, copies included. A single image, of which nothing would be left, is looked at
turned by half: no copy of it that may be remembered is.
"""

from typing import Any

import torch
from torch import Tensor

from recap.peers.held_out import MOST_IMAGES, scale_of
from recap.peers.images import LabelledImages


@torch.no_grad()
def scale_without_own_rows(
    model: Any, images: LabelledImages, owner: Tensor
) -> tuple[float, float]:
    """Map values drawn from nothing to full strength.

    `model` is a Scorer with a `memory` (..., M, C); `owner` says which image each row comes from.
    """
    whole: Tensor = model.memory
    maps = []
    normals = images.positions(abnormal=False)[:MOST_IMAGES]
    try:
        for index in normals:
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
