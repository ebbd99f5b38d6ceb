"""From tokens and anchors to patch evidence (Eqs. 3 and 4)."""

import torch
from torch import Tensor

EPSILON = 1e-12


def class_logits(tokens: Tensor, anchors: Tensor, scale: float) -> Tensor:
    """(Eq. 3) α · cosine to both anchors: (..., R, C), (..., 2, C) -> (..., R, 2).

    Anchors are unit vectors. The tokens' norms divide the products rather than the tokens: the
    same numbers without a normalised copy of every token.
    """
    norms = tokens.norm(dim=-1, keepdim=True).clamp_min(EPSILON)
    return scale * (tokens @ anchors.transpose(-1, -2)) / norms


def margin(logits: Tensor) -> Tensor:
    """(Eq. 4) φ = abnormal − normal logit; σ(φ) is the softmax's abnormal entry: (..., 2) -> (...)."""
    return logits[..., 1] - logits[..., 0]


def probability(patch_margin: Tensor) -> Tensor:
    """a = σ(φ), the abnormal probability."""
    return torch.sigmoid(patch_margin)
