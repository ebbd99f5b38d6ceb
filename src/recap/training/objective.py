"""The training loss of a batch (Eq. 13)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.config import Settings
from recap.model.logits import probability
from recap.model.losses import detection_loss, segmentation_loss, separation_loss
from recap.model.margins import adapted_margins
from recap.model.recap import DET, SEG, ReCAP, Tokens
from recap.model.scorer import BranchOutput


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
        score, maps = self._predict(batch)
        detection = detection_loss(score, batch.abnormal).mean()
        segmentation = self._segmentation(maps, batch) if maps is not None else score.new_zeros(())
        training = self.settings.training
        separation = training.separation_weight * separation_loss(
            self.model.base_prototypes(), training.separation_margin
        )
        return LossTerms(segmentation + detection + separation, segmentation, detection, separation)

    def _predict(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Scores of all images, and maps of those that have a mask."""
        model = self.model
        if not model.writes_back and self.normals is None:
            return self._scores(batch), self._maps(batch)
        tokens = model.adapt(batch.prefix)
        branch, _ = model.prototype_branch(tokens)
        if self.normals is not None:
            memory = self._memory_of_others(tokens, self.normals, batch.origin)
            branch = model.fuse(branch, memory)
        return branch.score, branch.map[batch.has_mask] if batch.has_mask.any() else None

    def _scores(self, batch: Batch) -> Tensor:
        """Image scores from the det branch alone."""
        return self.model.pool_patches(probability(self._margins(batch.prefix, DET)))

    def _maps(self, batch: Batch) -> Tensor | None:
        """Maps from the seg branch alone, of the images that have a mask: the others need none."""
        chosen = batch.has_mask
        if not chosen.any():
            return None
        prefix = batch.prefix if chosen.all() else batch.prefix[chosen]
        return self.model.fuse_maps(self._margins(prefix, SEG))

    def _margins(self, prefix: Tensor, branch: int) -> Tensor:
        model, taps = self.model, [tap.contiguous() for tap in prefix.unbind(dim=1)]
        if self.settings.training.context_gradient:
            tokens = [model.adapter(layer, branch)(tap) for layer, tap in enumerate(taps)]
            return model.prototype_margins(tokens, branch)[0]
        return torch.stack(
            [self._layer_margins(tap, layer, branch) for layer, tap in enumerate(taps)]
        )

    def _layer_margins(self, tap: Tensor, layer: int, branch: int) -> Tensor:
        """The same number; its gradient passes over the patches that have one, and no others."""
        adapter = self.model.adapter(layer, branch)
        with torch.no_grad():
            tokens = adapter(tap)
        anchors = self.model.pair(layer, branch)(tokens)
        margins = adapted_margins(tap, adapter.down.weight, tokens, anchors)
        return self.settings.model.logit_scale * margins

    def _segmentation(self, maps: Tensor, batch: Batch) -> Tensor:
        losses = segmentation_loss(maps.float(), batch.masks[batch.has_mask])
        return losses.sum() / len(batch.has_mask)

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
