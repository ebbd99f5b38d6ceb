"""A detector's calibration as a part of its graph, for programs that run the graph without recap.

recap itself decides from the score, so that a later calibration needs no new graph.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from recap.scoring.calibration import Calibration
from recap.scoring.detector import Detector
from recap.scoring.domain_guard import DomainRange
from recap.types import FloatArray


class Decisions(nn.Module):
    """Scores (B,) and descriptors (B, C) -> what `Calibration.decide` says of them, by name.

    Yes is 1 and no is 0. Scores are float32: a bound in float64 is moved to the float32 number
    beside it that the same scores pass.
    """

    normal_scores: Tensor
    threshold: Tensor
    descriptors: Tensor | None
    limit: Tensor | None

    def __init__(
        self,
        calibration: Calibration,
        domain: DomainRange | None = None,
        descriptors: FloatArray | None = None,
    ) -> None:
        super().__init__()
        self.digest = calibration.digest
        self.register_buffer("normal_scores", _down(calibration.normal_scores))
        self.register_buffer("threshold", -_down([-calibration.threshold]))
        self.curve = calibration.probability
        known = domain is not None and descriptors is not None
        self.register_buffer("descriptors", torch.from_numpy(descriptors) if known else None)
        self.register_buffer("limit", None if domain is None else _down([domain.limit]))

    def forward(self, score: Tensor, descriptor: Tensor | None) -> dict[str, Tensor]:
        """`p_value` and `abnormal`; `probability` and `in_domain` where they were calibrated."""
        as_high = (self.normal_scores >= score[:, None]).to(score.dtype).sum(dim=1)
        decided = {
            "p_value": (1 + as_high) / (len(self.normal_scores) + 1),
            "abnormal": (score >= self.threshold).to(score.dtype),
        }
        if self.curve is not None:
            slope, offset = self.curve
            decided["probability"] = torch.sigmoid(slope * score + offset)
        if descriptor is not None and self.descriptors is not None and self.limit is not None:
            distance = 1 - (descriptor @ self.descriptors.T).amax(dim=1)
            decided["in_domain"] = (distance <= self.limit).to(score.dtype)
        return decided


def decisions_of(detector: Detector) -> Decisions | None:
    """What a graph can say of its scores; None where images were not calibrated."""
    calibration = detector.card.calibration
    if calibration is None or detector.undecided():
        return None
    return Decisions(calibration, detector.card.domain, detector.descriptors)


def _down(values: Sequence[float]) -> Tensor:
    """The largest float32 numbers that are not above the values."""
    exact = np.asarray(values, np.float64)
    near = exact.astype(np.float32)
    below = np.nextafter(near, np.float32(-np.inf))
    return torch.from_numpy(np.where(near.astype(np.float64) > exact, below, near))
