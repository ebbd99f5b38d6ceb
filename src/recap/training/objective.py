"""The training loss of a batch (Eq. 13)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.methods.recap.head import ReCAP
from recap.methods.recap.logits import full
from recap.methods.recap.losses import detection_loss, segmentation_loss, separation_loss
from recap.methods.recap.margins import adapted_margins
from recap.methods.recap.scorer import BranchOutput
from recap.methods.recap.tokens import DET, SEG, Tokens


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

    def __init__(self, model: ReCAP, normals: Tensor | None = None) -> None:
        super().__init__()
        self.model = model
        self.settings = model.settings
        self.normals = normals
        """Frozen tokens of the normal support images, for `train_with_memory` alone."""

    def forward(self, batch: Batch) -> LossTerms:
        """The loss of one batch."""
        score, maps = self._predict(batch)
        nothing = self.model.theta_seg.new_zeros(())
        detection = nothing if score is None else self._detection(score, batch)
        segmentation = nothing if maps is None else self._segmentation(maps, batch)
        training = self.settings.training
        separation = training.separation_weight * separation_loss(
            self.model.base_prototypes(), training.separation_margin
        )
        return LossTerms(segmentation + detection + separation, segmentation, detection, separation)

    def by_label(self, batch: Batch) -> Tensor:
        """Whose scores are supervised: (B,). All; where there is one branch, those without mask."""
        return ~batch.has_mask if self.model.single else torch.ones_like(batch.has_mask)

    def _predict(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """Scores of the images that are learned by label, and maps of those that have a mask."""
        model, by_label = self.model, self.by_label(batch)
        if not model.writes_back and self.normals is None:
            det, seg = self._chosen(batch, by_label, DET), self._chosen(batch, batch.has_mask, SEG)
            return (
                None if det is None else model.trained_scores(det),
                None if seg is None else model.trained_maps(seg),
            )
        tokens = model.adapt(batch.prefix)
        branch = model.trained_outputs(tokens)
        if self.normals is not None:
            memory = self._memory_of_others(tokens, self.normals, batch.origin)
            branch = model.fuse(branch, memory)
        return (
            branch.score[by_label] if by_label.any() else None,
            branch.map[batch.has_mask] if batch.has_mask.any() else None,
        )

    def _chosen(self, batch: Batch, chosen: Tensor, branch: int) -> Tensor | None:
        """Margins of some images in one branch alone: the others need none."""
        if not chosen.any():
            return None
        return self._margins(batch.prefix if chosen.all() else batch.prefix[chosen], branch)

    def _margins(self, prefix: Tensor, branch: int) -> Tensor:
        model, taps = self.model, self.model.taps(prefix)
        if self.settings.training.context_gradient:
            tokens = [model.adapter(layer, branch)(tap) for layer, tap in enumerate(taps)]
            return model.prototype_margins(tokens, branch)[0]
        return torch.stack(
            [self._layer_margins(tap, layer, branch) for layer, tap in enumerate(taps)]
        )

    def _layer_margins(self, tap: Tensor, layer: int, branch: int) -> Tensor:
        """Margins (B, R) of one layer; their gradient is computed for the patches that have one."""
        adapter = self.model.adapter(layer, branch)
        with torch.no_grad():
            tokens = adapter(tap)
        anchors = self.model.pair(layer, branch)(tokens)
        margins = adapted_margins(tap, adapter.down.weight, tokens, anchors)
        return self.settings.model.logit_scale * margins

    def _detection(self, score: Tensor, batch: Batch) -> Tensor:
        losses = detection_loss(score, batch.abnormal[self.by_label(batch)])
        return losses.sum() / len(batch.abnormal)

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
        return self.model.pool_distances(torch.stack(distances), trained=True)


def distance_to_others(tokens: Tensor, remembered: Tensor, origin: Tensor) -> Tensor:
    """Nearest distance to normal images other than the one an image was made from.

    tokens (B, R, C), remembered (K, R, C), origin (B,) -> (B, R). Normal support images come
    first, so image k of the memory is support image k.
    """
    with torch.autocast(tokens.device.type, enabled=False):  # cosines near 1 need their digits
        queries, rows = (F.normalize(full(t), dim=-1) for t in (tokens, remembered))
        best = torch.einsum("brc,kqc->bkrq", queries, rows).amax(dim=-1)  # (B, K, R)
    itself = origin[:, None] == torch.arange(len(remembered), device=origin.device)
    return 1 - best.masked_fill(itself[:, :, None], -torch.inf).amax(dim=1)
