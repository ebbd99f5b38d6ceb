"""Training losses, one value per image, so that batches of any size mean the same (Eqs. 10–13)."""

import torch
import torch.nn.functional as F
from torch import Tensor

FOCAL_GAMMA, FOCAL_SMOOTH = 2.0, 1e-5
DICE_SMOOTH = 1.0
SCORE_CLAMP = 1e-6


def focal_loss(maps: Tensor, masks: Tensor) -> Tensor:
    """Focal loss on the two channels [1 − A, A], no α: (B, S, S), (B, S, S) -> (B,).

    The one-hot target is clamped to [s, 1 − s] and s added to the probability, s = 1e-5.
    """
    target = masks.to(maps.dtype).clamp(FOCAL_SMOOTH, 1 - FOCAL_SMOOTH)
    p_true = target * maps + (1 - target) * (1 - maps) + FOCAL_SMOOTH
    return ((1 - p_true) ** FOCAL_GAMMA * -p_true.log()).mean(dim=(-2, -1))


def dice_loss(maps: Tensor, masks: Tensor) -> Tensor:
    """1 − (2 Σ A m + 1) / (Σ A + Σ m + 1): (B, S, S), (B, S, S) -> (B,)."""
    masks = masks.to(maps.dtype)
    overlap = 2 * (maps * masks).sum(dim=(-2, -1)) + DICE_SMOOTH
    return 1 - overlap / (maps.sum(dim=(-2, -1)) + masks.sum(dim=(-2, -1)) + DICE_SMOOTH)


def segmentation_loss(maps: Tensor, masks: Tensor) -> Tensor:
    """(Eq. 10) Focal + Dice on the fused map: (B,)."""
    return focal_loss(maps, masks) + dice_loss(maps, masks)


def detection_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """(Eq. 11) Cross-entropy on logit(s), s clamped to [1e-6, 1 − 1e-6], in float32: (B,)."""
    scores = scores.float().clamp(SCORE_CLAMP, 1 - SCORE_CLAMP)
    return F.binary_cross_entropy_with_logits(torch.logit(scores), labels.float(), reduction="none")


def separation_loss(base: Tensor, margin: float) -> Tensor:
    """(Eq. 12) Mean over layers and branches of max(0, cos(q_n, q_a) − δ): (L, 2, 2, C) -> ()."""
    cosine = F.cosine_similarity(base[..., 0, :], base[..., 1, :], dim=-1)
    return (cosine - margin).clamp_min(0).mean()
