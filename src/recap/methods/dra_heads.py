"""DRA's four heads on one feature map, and the loss that trains each of them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NORMAL, SEEN, PSEUDO = range(3)
"""Kinds of training images."""
MARGIN = 5.0
"""Standard deviations of the prior by which the scores of deviating images must exceed it."""
DRAWS = 5000
TOP_SHARE = 0.10


class Heads(nn.Module):
    """Holistic normality, and abnormality of patches as seen, as made up, and as residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.holistic = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 1))
        self.seen, self.pseudo, self.composite = (nn.Conv2d(width, 1, 1) for _ in range(3))

    def patch_scores(self, features: Tensor, reference: Tensor) -> Tensor:
        """|score| of each patch by the heads for seen, pseudo and composite: (B, 3, h, w).

        Args:
            features: Of the images, (B, C, h, w).
            reference: Mean over the reference set, (C, h, w).
        """
        residual = features - reference
        scores = [self.seen(features), self.pseudo(features), self.composite(residual)]
        return torch.cat(scores, dim=1).abs()

    def forward(self, features: Tensor, reference: Tensor) -> Tensor:
        """Scores of images, the holistic one first: (B, 4)."""
        whole = self.holistic(features.mean(dim=(2, 3)))
        return torch.cat([whole, top_mean(self.patch_scores(features, reference))], dim=1)


def top_mean(scores: Tensor) -> Tensor:
    """Mean of the highest tenth of the patches: (B, n, h, w) -> (B, n)."""
    flat = scores.flatten(2)
    return flat.topk(max(int(flat.shape[2] * TOP_SHARE), 1), dim=2).values.mean(dim=2)


def abnormality(scores: Tensor) -> Tensor:
    """All abnormality less the normality: (B, 4) -> (B,)."""
    return scores[:, 1:].sum(dim=1) - scores[:, 0]


def total_loss(scores: Tensor, kinds: Tensor) -> Tensor:
    """Sum of the heads' losses, each over the images that concern it: (B, 4), (B,) -> ()."""
    draws = torch.randn(DRAWS).to(scores)
    abnormal = kinds != NORMAL
    holistic, seen, pseudo, composite = scores.unbind(dim=1)
    parts = [
        (holistic, ~abnormal, torch.ones_like(abnormal)),  # here normal images deviate
        (seen, kinds == SEEN, kinds != PSEUDO),
        (pseudo, kinds == PSEUDO, kinds != SEEN),
        (composite, abnormal, torch.ones_like(abnormal)),
    ]
    losses = [deviation_loss(s[use], y[use], draws) for s, y, use in parts]
    return torch.stack(losses).sum()


def deviation_loss(scores: Tensor, deviating: Tensor, draws: Tensor) -> Tensor:
    """Scores as deviations from a prior: none, or at least `MARGIN` above: (n,), (n,) -> ()."""
    deviation = (scores - draws.mean()) / draws.std()
    return torch.where(deviating, F.relu(MARGIN - deviation), deviation.abs()).mean()
