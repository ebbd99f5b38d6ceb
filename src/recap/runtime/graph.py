"""A detector as one graph: pixels in, named tensors out, for every exporter alike."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from recap.errors import BundleError
from recap.methods.base import Scorer
from recap.runtime.decisions import Decisions
from recap.runtime.quiet import quiet
from recap.scoring.arrays import tensors_by_name

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
        """What the model says, and what a calibration makes of it."""
        output = self.model(pixels)
        named = tensors_by_name(output)
        if self.decisions is not None:
            named |= self.decisions(output.score, output.descriptor)
        return named


@torch.no_grad()
def output_names(model: Scorer, decisions: Decisions | None = None) -> list[str]:
    """What a model's graph returns, found by one pass; this also fills caches of constants.

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
