"""Patch tokens of an untouched encoder after any of its blocks."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recap.encoders.vit import Encoder
from recap.errors import SettingsError

FINAL_NORMS = ("layernorm", "post_layernorm", "norm")
"""What the families call the norm after their last block."""


def checked_layers(layers: Sequence[int], encoder: Encoder) -> tuple[int, ...]:
    """The same layers, unless they do not exist or do not ascend."""
    if list(layers) == sorted(set(layers)) and layers and 1 <= layers[0] <= layers[-1]:
        if layers[-1] <= encoder.depth:
            return tuple(layers)
    raise SettingsError(
        f"options.layers = {list(layers)}: {encoder.name} has blocks 1 to {encoder.depth}; "
        "give some of them in ascending order."
    )


def layer_tokens(encoder: Encoder, pixels: Tensor, layers: Sequence[int]) -> Tensor:
    """Patch tokens after some blocks (counted from 1): (B, 3, S, S) -> (B, L, R, width)."""
    if set(layers) <= set(encoder.layers):  # taps may have been kept from another fit
        return encoder.taps(pixels)[:, [encoder.layers.index(layer) for layer in layers]]
    tokens, found, done = encoder.embed(pixels), [], 0
    for layer in layers:
        tokens, done = encoder.run(tokens, done, layer), layer
        found.append(encoder.patches(tokens))
    return torch.stack(found, dim=1)


def final_norm(encoder: Encoder) -> nn.Module:
    """The encoder's own norm after the last block."""
    return next(
        getattr(encoder.model, name) for name in FINAL_NORMS if hasattr(encoder.model, name)
    )
