"""How strongly maps are drawn that are partly distances to remembered images.

An image that is remembered is at distance nought from itself, so each normal image is looked at
without its own rows, copies included.
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
            # Of a single image nothing would be left; then its own rows have to do.
            model.memory = whole[..., others, :] if others.any() else whole
            maps.append(model(images.stack([index]).to(model.device)).map)
    finally:
        model.memory = whole
    return scale_of(maps)
