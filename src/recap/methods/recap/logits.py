"""From tokens and anchors to patch evidence (Eqs. 3 and 4)."""

from typing import Any

import torch
from torch import Tensor

EPSILON = 1e-12


def class_logits(tokens: Tensor, anchors: Tensor, scale: float) -> Tensor:
    """(Eq. 3) α · cosine to both anchors: (B, R, C), (B, 2, C) -> (B, R, 2).

    Anchors are unit vectors; tokens are normalised here. Never in half precision: α magnifies a
    rounding error of bfloat16 to 0.4.
    """
    with torch.autocast(tokens.device.type, enabled=False):
        return scale * _Cosine.apply(full(tokens), full(anchors))


def margin(logits: Tensor) -> Tensor:
    """(Eq. 4) φ = abnormal − normal logit: (..., 2) -> (...)."""
    return logits[..., 1] - logits[..., 0]


def probability(patch_margin: Tensor) -> Tensor:
    """a = σ(φ), which is the abnormal entry of the softmax over both logits."""
    return torch.sigmoid(patch_margin)


def full(values: Tensor) -> Tensor:
    """At least float32."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


class _Cosine(torch.autograd.Function):
    """⟨p / ‖p‖, q⟩ with a gradient that passes over the tokens twice.

    Composed from torch's own operations it is the same number, but their gradients pass over all
    tokens five times, which was a quarter of the training time.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, anchors: Tensor) -> Tensor:
        inverse = tokens.norm(dim=-1, keepdim=True).clamp_min(EPSILON).reciprocal()
        cosine = torch.bmm(tokens, anchors.transpose(1, 2)) * inverse
        ctx.save_for_backward(tokens, anchors, inverse, cosine)
        return cosine

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        tokens, anchors, inverse, cosine = ctx.saved_tensors
        (gradient,) = gradients
        scaled = gradient * inverse  # (B, R, 2)
        # d⟨p̂, q⟩ / dp = (q − ⟨p̂, q⟩ p̂) / ‖p‖
        along = (scaled * cosine).sum(dim=-1, keepdim=True) * inverse
        to_tokens = (tokens * along.neg()).baddbmm_(scaled, anchors)
        return to_tokens, torch.bmm(scaled.transpose(1, 2), tokens)
