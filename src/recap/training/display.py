"""The scale on which a detector's maps are drawn: fixed at fitting, from its normal images."""

import numpy as np
import torch
from torch import Tensor

from recap.methods.recap.head import ReCAP
from recap.methods.recap.memory import build_memory, nearest_distance
from recap.methods.recap.tokens import DET, SEG, Tokens, image_count, one_image
from recap.training.left_out import distances_to_others, judge_left_out
from recap.training.support import spread_over

ZERO_SHOT: tuple[float, float] = (0.0, 1.0)
SHOWN_FROM, FULL_AT = 0.90, 2.0
"""A value is drawn from the 90th percentile of what normal pixels reach, at full strength from
twice that."""
HIGHEST_LOW = 0.99
COMPARED_IMAGES = 16
"""Each is compared with all others; that many say enough about a percentile."""


@torch.no_grad()
def map_scale(
    model: ReCAP, normal: Tokens, pixels: Tensor, remembered: Tokens
) -> tuple[float, float]:
    """(low, high) from the maps of the normal support images, each without itself in the memory.

    `remembered` are the tokens that the memory was made of. A single normal image has no others to
    be compared with; then high is what the branch can reach in practice.
    """
    images = image_count(normal)
    if images < 2:
        return (0.0, 1.0) if model.has_prototypes else (0.0, 0.25)
    chosen = spread_over(images, COMPARED_IMAGES)
    maps = [
        _map_without_itself(model, normal, pixels, remembered, index).cpu().numpy()
        for index in chosen
    ]
    # A head that calls most normal pixels abnormal must still leave room above for a colour.
    low = min(float(np.quantile(np.stack(maps), SHOWN_FROM)), HIGHEST_LOW)
    return low, min(1.0, max(FULL_AT * low, 1e-3))


def _map_without_itself(
    model: ReCAP, normal: Tokens, pixels: Tensor, remembered: Tokens, index: int
) -> Tensor:
    image = one_image(normal, index)
    distances = distances_to_others(model, image, remembered, index, image_count(normal))
    if distances is None:  # a small coreset may hold nothing of the others
        distances = _to_all_tokens_of_others(image, normal, index)
    return judge_left_out(model, image, pixels[index : index + 1], distances).map[0]


def _to_all_tokens_of_others(image: Tokens, normal: Tokens, index: int) -> Tensor:
    """Nearest distances (L, 2, 1, R) of one image to the others, as if all were remembered."""
    others = [i for i in range(image_count(normal)) if i != index]
    layers = []
    for own, every in zip(image, normal, strict=True):
        branches = [nearest_distance(own[b], build_memory(every[b][others])) for b in (SEG, DET)]
        layers.append(torch.stack(branches))
    return torch.stack(layers)
