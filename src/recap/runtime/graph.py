"""A detector as one graph: pixels in, named tensors out, for every exporter alike.

Its calibration can be a part of it, for programs that run the graph without recap; recap itself
decides from the score, so that a later calibration needs no new graph.
"""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recap.errors import BundleError
from recap.methods.base import Scorer
from recap.scoring.arrays import tensors_by_name
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
    """Give what a graph can say of its scores; None where images were not calibrated."""
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


INPUT = "pixels"


class Graph(nn.Module):
    """0..1 pixels (B, 3, S, S) -> the tensors of `output_names`, as a tuple."""

    def __init__(self, model: Scorer, decisions: Decisions | None = None) -> None:
        super().__init__()
        self.model = model
        self.decisions = decisions

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Score a batch."""
        return tuple(self.by_name(pixels).values())

    def by_name(self, pixels: Tensor) -> dict[str, Tensor]:
        """Return what the model says, and what a calibration makes of it."""
        output = self.model(pixels)
        named = tensors_by_name(output)
        if self.decisions is not None:
            named |= self.decisions(output.score, output.descriptor)
        return named


@torch.no_grad()
def output_names(model: Scorer, decisions: Decisions | None = None) -> list[str]:
    """Find in one pass what a model's graph returns; this also fills caches of constants.

    A constant that is first made while tracing would stay in its cache as a stand-in.
    """
    return list(Graph(model, decisions).by_name(_example(model, 1)))


@torch.no_grad()
def trace(model: Scorer, decisions: Decisions | None = None) -> Any:
    """The graph as an exported program with a free batch size."""
    output_names(model, decisions)
    example, batch = _example(model, 2), torch.export.Dim("batch", min=1, max=4096)
    failure: Exception | None = None
    # Strict tracing follows what reads a batch's length as a number, but takes twice the time.
    graph = Graph(with_plain_flags(model), decisions).eval()
    for strict in (False, True):
        try:
            with quiet():
                return torch.export.export(
                    graph, (example,), dynamic_shapes=({0: batch},), strict=strict
                )
        # torch raises errors of many kinds, from its own parts and from the model's.
        except Exception as error:
            failure = error
    reason = str(failure).strip().splitlines()[0][:300]
    raise BundleError(
        f"A detector of the kind {type(model).__name__} cannot be made one graph ({reason}). "
        "Score with --runtime torch."
    ) from failure


def with_plain_flags(model: Scorer) -> Scorer:
    """A copy, but for the encoder, whose saved yes-or-no values are no tensors any more.

    A graph has no branches: what fitting decided once must be known while it is traced.
    """
    copied = copy.deepcopy(model, {id(model.encoder): model.encoder})
    for module in copied.modules():
        for name, value in list(module._buffers.items()):
            if value is not None and value.dtype == torch.bool and value.dim() == 0:
                del module._buffers[name]
                setattr(module, name, bool(value))
    return copied


def _example(model: Scorer, count: int) -> Tensor:
    size = model.encoder.input_px
    return torch.linspace(0, 1, count * 3 * size * size).view(count, 3, size, size)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Exporters talk on stdout, which is for results, and log whole graphs for their developers.

    What goes wrong comes as an exception.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
