"""What a runtime returns: a model's output as arrays, whatever computed it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from recap.methods.base import Output
from recap.types import FloatArray

SOURCE = "score_"
"""What the name of a source stands behind among the outputs of a graph."""


@dataclass(frozen=True, eq=False)
class Arrays:
    """An `Output` as arrays."""

    score: FloatArray
    """(B,)"""
    map: FloatArray
    """(B, S, S)"""
    scores: dict[str, FloatArray] = field(default_factory=dict)
    """The score (B,) of each source alone."""
    drift: FloatArray | None = None
    """(B, 2, L, 2)"""
    descriptor: FloatArray | None = None
    """(B, width)"""

    def by_name(self) -> dict[str, FloatArray]:
        """The arrays that are there, in the order of a graph's outputs."""
        return _by_name(self)


def named_arrays(values: Mapping[str, FloatArray]) -> Arrays:
    """Arrays by their names; whatever else a graph returns is left out."""
    scores = {k.removeprefix(SOURCE): v for k, v in values.items() if k.startswith(SOURCE)}
    found = {name: values.get(name) for name in ("drift", "descriptor")}
    return Arrays(values["score"], values["map"], scores, **found)


class Runtime(Protocol):
    """Something that computes a detector's output from pixels."""

    @property
    def name(self) -> str:
        """Such as torch, onnx, openvino."""

    @property
    def lanes(self) -> int:
        """Images that it runs side by side, each in a thread of the caller."""

    def run(self, pixels: FloatArray) -> Arrays:
        """Score 0..1 pixels (B, 3, S, S)."""

    def describe(self) -> dict[str, Any]:
        """What computes, for the manifest: name, version, threads."""


def tensors_by_name(output: Output) -> dict[str, Tensor]:
    """The tensors of an output under the names of `Arrays`, in their order."""
    return _by_name(output)


def _by_name(output: Any) -> dict[str, Any]:
    scores = {SOURCE + name: value for name, value in output.scores.items()}
    values = {"score": output.score, "map": output.map, **scores}
    values |= {"drift": output.drift, "descriptor": output.descriptor}
    return {name: value for name, value in values.items() if value is not None}


def as_output(arrays: Arrays) -> Output:
    """Arrays as the model's own kind of output."""
    tensors = {name: torch.from_numpy(value) for name, value in arrays.by_name().items()}
    scores = {name: torch.from_numpy(value) for name, value in arrays.scores.items()}
    return Output(
        tensors["score"],
        tensors["map"],
        scores,
        tensors.get("drift"),
        tensors.get("descriptor"),
    )


def join(parts: list[Arrays]) -> Arrays:
    """The outputs of several images as one batch."""
    named = [part.by_name() for part in parts]
    return named_arrays({name: np.concatenate([part[name] for part in named]) for name in named[0]})
