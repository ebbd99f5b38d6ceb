"""Scoring tokens: what adapters make of an image, for every layer and branch."""

from collections.abc import Sequence

import torch
from torch import Tensor

SEG, DET = 0, 1
"""Positions of the branches, as in `recap.types.BRANCHES`."""

Tokens = Sequence[tuple[Tensor, Tensor]]
"""Of every layer (seg, det), each (B, R, C). Kept apart rather than stacked: no copies, and what
one layer and branch needs fits the processor's cache."""


def concatenate(images: Sequence[Tokens]) -> Tokens:
    """Join the tokens of several images along the batch."""
    return [
        (torch.cat([seg for seg, _ in layer]), torch.cat([det for _, det in layer]))
        for layer in zip(*images, strict=True)
    ]


def image_count(tokens: Tokens) -> int:
    """How many images these are the tokens of."""
    return len(tokens[0][DET])


def one_image(tokens: Tokens, index: int) -> Tokens:
    """The tokens of one image of a batch, as a batch of one."""
    return [(seg[index : index + 1], det[index : index + 1]) for seg, det in tokens]
