"""The training loss of a batch (Eq. 13)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.config import Settings
from recap.model.logits import probability
from recap.model.losses import detection_loss, segmentation_loss, separation_loss
from recap.model.recap import DET, BranchOutput, ReCAP, Tokens


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

    def __init__(
        self,
        model: ReCAP,
        settings: Settings,
        supervises_maps: bool = True,
        normals: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        self.supervises_maps = supervises_maps
        """Without any mask the segmentation branch takes no part, and is not computed."""
        self.normals = normals
        """Frozen tokens of the normal support images, for `train_with_memory` alone."""

    def forward(self, batch: Batch) -> LossTerms:
        """The loss of one batch."""
        score, maps = self._predict(batch)
        detection = detection_loss(score, batch.abnormal).mean()
        segmentation = self._segmentation(maps, batch) if maps is not None else score.new_zeros(())
        training = self.settings.training
        separation = training.separation_weight * separation_loss(
            self.model.base_prototypes(), training.separation_margin
        )
        return LossTerms(segmentation + detection + separation, segmentation, detection, separation)

    def _predict(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        model = self.model
        if not self.supervises_maps and not model.writes_back and self.normals is None:
            return self._score_alone(batch), None
        tokens = model.adapt(batch.prefix)
        branch, _ = model.prototype_branch(tokens)
        if self.normals is not None:
            memory = self._memory_of_others(tokens, self.normals, batch.origin)
            branch = model.fuse(branch, memory)
        return branch.score, branch.map

    def _score_alone(self, batch: Batch) -> Tensor:
        """The image score from the det branch: half the work where no map is supervised."""
        taps = [tap.contiguous() for tap in batch.prefix.unbind(dim=1)]
        tokens = [self.model.adapter(layer, DET)(tap) for layer, tap in enumerate(taps)]
        margins, _ = self.model.prototype_margins(tokens, DET)
        return self.model.pool_patches(probability(margins))

    def _segmentation(self, maps: Tensor, batch: Batch) -> Tensor:
        if not batch.has_mask.any():
            return maps.new_zeros(())
        chosen = batch.has_mask
        masks = batch.masks
        if not chosen.all():
            maps, masks = maps[chosen], masks[chosen]
        return segmentation_loss(maps.float(), masks).sum() / len(chosen)

    def _memory_of_others(self, tokens: Tokens, normals: Tensor, origin: Tensor) -> BranchOutput:
        with torch.no_grad():
            remembered = self.model.adapt(normals)
        distances = [
            torch.stack(
                [distance_to_others(t, r, origin) for t, r in zip(query, rows, strict=True)]
            )
            for query, rows in zip(tokens, remembered, strict=True)
        ]
        return self.model.pool_distances(torch.stack(distances))


def distance_to_others(tokens: Tensor, remembered: Tensor, origin: Tensor) -> Tensor:
    """Nearest distance to normal images other than the one an image was made from.

    tokens (B, R, C), remembered (K, R, C), origin (B,) -> (B, R). Normal support images come
    first, so image k of the memory is support image k.
    """
    queries, rows = F.normalize(tokens, dim=-1), F.normalize(remembered, dim=-1)
    best = torch.einsum("brc,kqc->bkrq", queries, rows).amax(dim=-1)  # (B, K, R)
    itself = origin[:, None] == torch.arange(len(remembered), device=origin.device)
    return 1 - best.masked_fill(itself[:, :, None], -torch.inf).amax(dim=1)
