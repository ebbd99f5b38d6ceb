"""Patch tokens of an untouched encoder after any of its blocks."""

from collections.abc import Sequence

from torch import Tensor

from recap.encoders.vit import Encoder
from recap.errors import SettingsError


def checked_layers(layers: Sequence[int], encoder: Encoder) -> tuple[int, ...]:
    """The same layers, unless they do not exist or do not ascend."""
    if list(layers) == sorted({*layers} & {*range(1, encoder.depth + 1)}) and layers:
        return tuple(layers)
    given = f"options.layers = {list(layers)}"
    raise _no_such(given, "some of them in ascending order", encoder)


def checked_layer(layer: int, encoder: Encoder) -> tuple[int, ...]:
    """The layer alone, unless it does not exist."""
    if 1 <= layer <= encoder.depth:
        return (layer,)
    raise _no_such(f"options.layer = {layer}", "one of them", encoder)


def _no_such(given: str, wanted: str, encoder: Encoder) -> SettingsError:
    return SettingsError(f"{given}: {encoder.name} has blocks 1 to {encoder.depth}; give {wanted}.")


def layer_tokens(encoder: Encoder, pixels: Tensor, layers: Sequence[int]) -> Tensor:
    """Patch tokens after some blocks (counted from 1): (B, 3, S, S) -> (B, L, R, width)."""
    if set(layers) <= set(encoder.layers):  # taps may have been kept from another fit
        return encoder.taps(pixels)[:, [encoder.layers.index(layer) for layer in layers]]
    return encoder.hidden(pixels, tuple(layers))[:, :, encoder.prefix_tokens :]
