"""A first calibration from the support set itself: each normal image scored without itself.

The memory forgets the image; the prototypes cannot, as they were trained on it. So this is an
estimate, marked as one, that `recap calibrate` with other images replaces.
"""

import torch
from torch import Tensor

from recap.methods.recap.head import ReCAP
from recap.methods.recap.scorer import BranchOutput
from recap.methods.recap.tokens import Tokens, image_count, one_image
from recap.scoring.calibration import calibrate_scores
from recap.scoring.detector import Detector
from recap.scoring.domain_guard import domain_range
from recap.training.left_out import distances_to_others, judge_left_out
from recap.training.support import spread_over

LEFT_OUT_IMAGES = 20
"""At most that many are left out in turn: 19 are needed for a rate of 5 %, and each is compared
with all others."""


def with_estimate(
    detector: Detector,
    normal: Tokens,
    pixels: Tensor,
    remembered: Tokens,
    descriptors: Tensor,
    whole: Tensor | None = None,
) -> Detector:
    """Add a calibration and the domain's range from a detector's own support.

    With one normal image there is no calibration, and with one image in all no range.

    Args:
        normal: tokens of the normal support images.
        pixels: (n, 3, S, S) of the same images.
        remembered: tokens that the memory was made of: those images or, one after the other, all
            copies of each.
        descriptors: (n, D) of all support images.
        whole: evidence of the normal images as a whole, each from the others, where scores have it.
    """
    model = detector.model
    assert isinstance(model, ReCAP)
    detector = detector.guarded(*domain_range([row[None] for row in descriptors.cpu().numpy()]))
    outputs = left_out(model, normal, pixels, remembered, whole)
    if not outputs:
        return detector
    calibration = calibrate_scores(
        [float(output.score[0]) for output in outputs],
        [float(output.map.max()) for output in outputs],
        source="leave-one-out",
        reading=detector.card.settings.reading,
    )
    return detector.calibrated(calibration)


@torch.no_grad()
def left_out(
    model: ReCAP,
    normal: Tokens,
    pixels: Tensor,
    remembered: Tokens,
    whole: Tensor | None = None,
) -> list[BranchOutput]:
    """What the model says of normal support images, each without its own rows in the memory."""
    images = image_count(normal)
    if images < 2:
        return []
    outputs = []
    for index in spread_over(images, LEFT_OUT_IMAGES):
        image = one_image(normal, index)
        distances = distances_to_others(model, image, remembered, index, images)
        if distances is None:
            return []
        own = slice(index, index + 1)
        judged = judge_left_out(model, image, pixels[own], distances)
        score = model.with_appearance(judged.score, None if whole is None else whole[own])
        outputs.append(BranchOutput(score, judged.map))
    return outputs
