"""The training loss of a batch (Eq. 13)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.config import Settings
from recap.model.fusion import fuse_branches
from recap.model.losses import detection_loss, segmentation_loss, separation_loss
from recap.model.recap import BranchOutput, ReCAP


@dataclass(frozen=True)
class Batch:
    """Frozen tokens and targets of some training images."""

    prefix: Tensor
    abnormal: Tensor  # (B,) bool
    masks: Tensor  # (B, S, S) bool
    has_mask: Tensor  # (B,) bool: whether the map of this image is supervised
    origin: Tensor  # (B,) which support image each copy was made from


@dataclass(frozen=True)
class LossTerms:
    """The loss and its parts, each the mean over the batch."""

    total: Tensor
    segmentation: Tensor
    detection: Tensor
    separation: Tensor

    NAMES: ClassVar = ("loss", "segmentation", "detection", "separation")

    def stacked(self) -> Tensor:
        """(4,) in the order of NAMES."""
        return torch.stack([self.total, self.segmentation, self.detection, self.separation])


class Objective(nn.Module):
    """L = L_seg (images with masks) + L_det + λ_sep · L_sep, averaged over the batch.

    Every image counts alike, so a batch of one is the paper's step and a larger batch is the mean
    of such steps.
    """

    def __init__(self, model: ReCAP, settings: Settings, normals: Tensor | None = None) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        self.normals = normals
        """Frozen tokens of the normal support images, for `train_with_memory` alone."""

    def forward(self, batch: Batch) -> LossTerms:
        """The loss of one batch."""
        tokens = self.model.adapt(batch.prefix)
        branch, _ = self.model.prototype_branch(tokens)
        if self.normals is not None:
            branch = self._with_memory(branch, tokens, self.normals, batch)
        detection = detection_loss(branch.score, batch.abnormal).mean()
        segmentation = self._segmentation(branch.map, batch)
        training = self.settings.training
        assert self.model.prototypes is not None
        separation = training.separation_weight * separation_loss(
            self.model.prototypes.base, training.separation_margin
        )
        return LossTerms(segmentation + detection + separation, segmentation, detection, separation)

    def _segmentation(self, maps: Tensor, batch: Batch) -> Tensor:
        if not batch.has_mask.any():
            return maps.new_zeros(())
        chosen = batch.has_mask
        loss = segmentation_loss(maps[chosen].float(), batch.masks[chosen])
        return loss.sum() / len(maps)

    def _with_memory(
        self, branch: BranchOutput, tokens: Tensor, normals: Tensor, batch: Batch
    ) -> BranchOutput:
        with torch.no_grad():
            remembered = F.normalize(self.model.adapt(normals), dim=-1)  # (L, 2, K, R, C)
        distance = distance_to_others(tokens, remembered, batch.origin)
        memory = self.model.pool_distances(distance)
        weight = self.settings.memory.weight
        return BranchOutput(
            fuse_branches(branch.score, memory.score, weight),
            fuse_branches(branch.map, memory.map, weight),
        )


def distance_to_others(tokens: Tensor, remembered: Tensor, origin: Tensor) -> Tensor:
    """Nearest distance to normal images other than the one an image was made from.

    tokens (L, 2, B, R, C), remembered unit rows (L, 2, K, R, C), origin (B,) -> (L, 2, B, R).
    """
    cosine = torch.einsum("lsbrc,lskqc->lsbkrq", F.normalize(tokens, dim=-1), remembered)
    best = cosine.amax(dim=-1)  # (L, 2, B, K, R)
    itself = origin[:, None] == torch.arange(remembered.shape[2], device=origin.device)
    return 1 - best.masked_fill(itself[:, :, None], -torch.inf).amax(dim=3)
