"""Margins of side adapters as one operation, whose gradient touches few patches.

Training asks of a margin φ only where the loss has a slope: the top-k patches of the det branch,
and of the seg branch those that are not saturated at α = 100. Ordinary gradients pass over all
patches all the same, which was two thirds of the training time.
"""

from typing import Any

import torch
from torch import Tensor

from recap.methods.recap.adapters import SLOPE
from recap.methods.recap.logits import EPSILON, full

NEGLIGIBLE = 1e-7
"""Share of the steepest slope below which a patch is passed over: added to the steepest one in
float32, it would be lost in rounding."""


def adapted_margins(taps: Tensor, weight: Tensor, tokens: Tensor, anchors: Tensor) -> Tensor:
    """(Eqs. 3 and 4) φ / α = cos(p, q̃_a) − cos(p, q̃_n): (B, R) for patches p = LeakyReLU(W x).

    Taps x (B, R, width), W (C, width), anchors q̃ (B, 2, C). The tokens p (B, R, C) are given and
    taken as constants; the gradient with respect to W is that through them.
    """
    # Never in half precision: α magnifies its rounding (see `class_logits`).
    with torch.autocast(taps.device.type, enabled=False):
        taps, tokens, anchors = full(taps), full(tokens), full(anchors)
        return _Margins.apply(taps, weight, tokens, anchors[:, 1] - anchors[:, 0])


class _Margins(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, taps: Tensor, weight: Tensor, tokens: Tensor, direction: Tensor
    ) -> Tensor:
        inverse = tokens.norm(dim=-1).clamp_min(EPSILON).reciprocal()  # (B, R)
        # In this order: with the vector on the right the product takes twelve times as long.
        margins = torch.bmm(direction.unsqueeze(1), tokens.mT).squeeze(1) * inverse
        ctx.save_for_backward(taps, tokens, direction, inverse, margins)
        return margins

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None, Tensor]:
        taps, tokens, direction, inverse, margins = ctx.saved_tensors
        slope = gradients[0] * inverse
        to_direction = torch.bmm(slope.unsqueeze(1), tokens).squeeze(1)
        # dφ / dp = (d − φ p̂) / ‖p‖ with d = q̃_a − q̃_n and p̂ = p / ‖p‖
        chosen = _steep(gradients[0])
        image = chosen // taps.shape[1]
        slope = slope.flatten()[chosen].unsqueeze(1)
        along = (margins * inverse).flatten()[chosen].unsqueeze(1)
        p = tokens.flatten(0, 1).index_select(0, chosen)
        to_tokens = direction.index_select(0, image).addcmul_(p, along, value=-1).mul_(slope)
        to_adapter = torch.ops.aten.leaky_relu_backward(to_tokens, p, SLOPE, True)
        x = taps.flatten(0, 1).index_select(0, chosen)
        return None, to_adapter.T @ x, None, to_direction


def _steep(gradient: Tensor) -> Tensor:
    """Positions, among all patches of all images, whose slope is not negligible."""
    size = gradient.abs().flatten()
    return (size > NEGLIGIBLE * size.amax()).nonzero().squeeze(1)
