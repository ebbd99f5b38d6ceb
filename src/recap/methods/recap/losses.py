"""Training losses, one value per image, so that batches of any size mean the same (Eqs. 10–13)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from recap.methods.base import top_k_mean, weigh
from recap.methods.images import LabelledImages
from recap.methods.recap.adapters import Adapter
from recap.methods.recap.head import ReCAP
from recap.methods.recap.prototypes import adapted_margins, probability
from recap.methods.recap.settings import TrainingSettings
from recap.methods.recap.view import Branch

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


@dataclass(frozen=True)
class LossTerms:
    """The loss and its parts, each the mean over the batch."""

    total: Tensor
    segmentation: Tensor
    detection: Tensor
    separation: Tensor

    NAMES: ClassVar = ("loss", "segmentation", "detection", "separation")

    def by_name(self) -> dict[str, float]:
        """Return the terms as numbers."""
        values = torch.stack([self.total, self.segmentation, self.detection, self.separation])
        return dict(zip(self.NAMES, values.detach().tolist(), strict=True))


class Objective:
    """(Eq. 13) L = L_seg (images with masks) + L_det + λ_sep · L_sep, averaged over the batch.

    Every image counts alike, so a batch of one is the paper's step and a larger batch is the mean
    of such steps. What is taught are one or two branches of a model; a single one learns from each
    image as well as it can: by its mask or, where there is none, by its label.
    """

    def __init__(self, model: ReCAP, branches: list[Branch]) -> None:
        self.model, self.branches = model, branches
        self.training: TrainingSettings = model.settings.training
        self.top_k: float = model.settings.model.top_k

    def __call__(self, hidden: Tensor, images: LabelledImages) -> LossTerms:
        """Compute the loss of one batch, from its frozen features."""
        by_mask = images.has_mask
        by_label = ~by_mask if len(self.branches) == 1 else torch.ones_like(by_mask)
        det, seg = self._margins(hidden, by_label, by_mask)
        detection = segmentation = self.branches[0].theta.new_zeros(())
        if det is not None:
            losses = detection_loss(self.scores(det), images.abnormal[by_label])
            detection = losses.sum() / len(by_label)
        if seg is not None:
            losses = segmentation_loss(self.maps(seg).float(), images.masks[by_mask])
            segmentation = losses.sum() / len(by_mask)
        base = torch.stack([branch.base() for branch in self.branches], dim=1)  # (L, b, 2, C)
        separation = self.training.separation_weight * separation_loss(
            base, self.training.separation_margin
        )
        return LossTerms(segmentation + detection + separation, segmentation, detection, separation)

    def scores(self, margins: Tensor) -> Tensor:
        """Image scores at α from the margins of the branch for scores: (L, B, R) -> (B,)."""
        return weigh(top_k_mean(probability(margins), self.top_k), self.branches[-1].weights)

    def maps(self, margins: Tensor) -> Tensor:
        """Maps at α, neither blurred nor along edges: (L, B, R) -> (B, S, S)."""
        drawn = probability(self.model.drawing.draw_plainly(margins))
        return weigh(drawn, self.branches[0].weights)

    def _margins(
        self, hidden: Tensor, by_label: Tensor, by_mask: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Margins of the images that are learned by label, and of those learned by mask."""
        if self.model.writes_back:
            maps, scores = self.model.tokens(self.model.features(hidden))
            det, seg = self.branches[-1].margins(scores)[0], self.branches[0].margins(maps)[0]
            return (
                det[:, by_label] if by_label.any() else None,
                seg[:, by_mask] if by_mask.any() else None,
            )
        return (
            self._side_margins(hidden, by_label, self.branches[-1]),
            self._side_margins(hidden, by_mask, self.branches[0]),
        )

    def _side_margins(self, hidden: Tensor, chosen: Tensor, branch: Branch) -> Tensor | None:
        """Margins of some images in one branch; gradients of the patches that have a slope."""
        if not chosen.any():
            return None
        layers = self.model.features(hidden if chosen.all() else hidden[chosen]).layers
        margins = []
        for taps, adapter, pair in zip(layers, branch.adapters, branch.pairs, strict=True):
            assert isinstance(adapter, Adapter)
            with torch.no_grad():
                tokens = adapter(taps)
            # How the context moves prototypes has no gradient: it hardly changes anything and
            # doubles the time of a step.
            margins.append(adapted_margins(taps, adapter.down.weight, tokens, pair(tokens)))
        return branch.logit_scale * torch.stack(margins)
