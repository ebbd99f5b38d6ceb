"""Margins of side adapters as one operation, whose gradient touches few patches.

Training asks of a margin φ only where the loss has a slope: the top-k patches of the det branch,
and of the seg branch those that are not saturated at α = 100. Ordinary gradients pass over all
patches all the same, which was two thirds of the training time.
"""

from typing import Any

import torch
from torch import Tensor

from recap.model.adapters import SLOPE
from recap.model.logits import EPSILON, full

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
        # Not a matrix product: with a single column that is five times as slow.
        margins = (tokens * direction.unsqueeze(1)).sum(dim=-1) * inverse
        ctx.save_for_backward(taps, tokens, direction, inverse, margins)
        return margins

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None, Tensor]:
        taps, tokens, direction, inverse, margins = ctx.saved_tensors
        (gradient,) = gradients
        size = gradient.abs()
        image, patch = (size > NEGLIGIBLE * size.amax()).nonzero(as_tuple=True)
        p, scale = tokens[image, patch], inverse[image, patch].unsqueeze(-1)
        slope = gradient[image, patch].unsqueeze(-1) * scale
        # dφ / dp = (d − φ p̂) / ‖p‖ with d = q̃_a − q̃_n and p̂ = p / ‖p‖
        to_tokens = direction[image].sub_(p * (margins[image, patch].unsqueeze(-1) * scale))
        to_tokens.mul_(slope).mul_(torch.where(p > 0, 1.0, SLOPE))
        to_direction = torch.zeros_like(direction).index_add_(0, image, p * slope)
        return None, to_tokens.T @ taps[image, patch], None, to_direction
