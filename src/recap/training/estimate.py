"""A first calibration from the support set itself: each normal image scored without itself.

The memory forgets the image; the prototypes cannot, as they were trained on it. So this is an
estimate, marked as one, that `recap calibrate` with other images replaces.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from recap.model.memory import nearest_distance
from recap.model.recap import DET, SEG, ReCAP, Tokens
from recap.model.scorer import BranchOutput
from recap.scoring.calibration import calibrate_scores
from recap.scoring.detector import Detector
from recap.scoring.domain_guard import domain_range

LEFT_OUT_IMAGES = 20
"""At most that many are left out in turn: 19 are needed for a rate of 5 %, and each is compared
with all others."""
_SAME_ROW = 1 - 1e-6


def with_estimate(
    detector: Detector, normal: Tokens, remembered: Tokens, descriptors: Tensor
) -> Detector:
    """The detector with a calibration from its own support; as it is if that has one normal image.

    Args:
        normal: tokens of the normal support images.
        remembered: tokens that the memory was made of: those images or, one after the other, all
            copies of each.
        descriptors: (n, D) of all support images.
    """
    model = detector.model
    assert isinstance(model, ReCAP)
    outputs = left_out(model, normal, remembered)
    if not outputs:
        return detector
    domain, known = domain_range(list(descriptors.cpu().numpy()))
    calibration = calibrate_scores(
        [float(output.score[0]) for output in outputs],
        [float(output.map.max()) for output in outputs],
        source="leave-one-out",
        reading=detector.card.settings.reading,
        domain=domain,
    )
    return detector.calibrated(calibration, known)


@torch.no_grad()
def left_out(model: ReCAP, normal: Tokens, remembered: Tokens) -> list[BranchOutput]:
    """What the model says of normal support images, each without its own rows in the memory."""
    images = len(normal[0][0])
    if images < 2:
        return []
    outputs = []
    for index in range(0, images, -(-images // LEFT_OUT_IMAGES)):
        image: Tokens = [(seg[index : index + 1], det[index : index + 1]) for seg, det in normal]
        distances = _distances_to_others(model, image, remembered, index, images)
        if distances is None:
            return []
        prototype = model.prototype_branch(image)[0] if model.trained_head else None
        outputs.append(model.fuse(prototype, model.pool_distances(distances)))
    return outputs


def _distances_to_others(
    model: ReCAP, image: Tokens, remembered: Tokens, index: int, images: int
) -> Tensor | None:
    """Nearest distances (L, 2, 1, R) to the rows of other images; None where there are none."""
    assert model.memory is not None
    copies = len(remembered[0][0]) // images
    own = slice(index * copies, (index + 1) * copies)
    layers = []
    for tokens, made_of, rows in zip(image, remembered, model.memory, strict=True):
        branches = [
            _rows_of_others(rows[b], made_of[b if len(rows) > 1 else DET], own)
            for b in range(len(rows))
        ]
        if any(not len(others) for others in branches):
            return None
        to_det = nearest_distance(tokens[DET], branches[-1])
        to_seg = to_det if len(rows) == 1 else nearest_distance(tokens[SEG], branches[SEG])
        layers.append(torch.stack([to_seg, to_det]))
    return torch.stack(layers)


def _rows_of_others(rows: Tensor, made_of: Tensor, own: slice) -> Tensor:
    """Memory rows (M, C) but those of the images `own` among (N, R, C)."""
    patches = made_of.shape[1]
    if len(rows) == made_of.shape[0] * patches:
        return torch.cat([rows[: own.start * patches], rows[own.stop * patches :]])
    # A coreset has lost the order, but its rows are still the tokens themselves.
    mine = F.normalize(made_of[own].flatten(0, 1), dim=-1)
    return rows[(rows @ mine.T).amax(dim=-1) < _SAME_ROW]
