"""What a runtime returns: a model's output as arrays, whatever computed it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from recap.methods.recap.scorer import BranchOutput, Output
from recap.types import FloatArray


@dataclass(frozen=True, eq=False)
class Arrays:
    """An `Output` without the maps of single branches; None for what the detector lacks."""

    score: FloatArray
    """(B,)"""
    map: FloatArray
    """(B, S, S)"""
    score_prototype: FloatArray | None = None
    score_memory: FloatArray | None = None
    drift: FloatArray | None = None
    """(B, 2, L, 2)"""
    appearance: FloatArray | None = None
    """(B,)"""
    descriptor: FloatArray | None = None
    """(B, width)"""

    def by_name(self) -> dict[str, FloatArray]:
        """The arrays that are there, in the order of a graph's outputs."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def named_arrays(values: Mapping[str, FloatArray]) -> Arrays:
    """Arrays by their names; whatever else a graph returns is left out."""
    return Arrays(**{f.name: values[f.name] for f in fields(Arrays) if f.name in values})


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
    prototype, memory = output.prototype, output.memory
    values = {
        "score": output.score,
        "map": output.map,
        "score_prototype": None if prototype is None else prototype.score,
        "score_memory": None if memory is None else memory.score,
        "drift": output.drift,
        "appearance": output.appearance,
        "descriptor": output.descriptor,
    }
    return {name: value for name, value in values.items() if value is not None}


def as_output(arrays: Arrays) -> Output:
    """Arrays as the model's own kind of output; the maps of single branches are empty."""
    tensors = {name: torch.from_numpy(value) for name, value in arrays.by_name().items()}
    nothing = torch.empty((len(arrays.map), 0, 0))

    def branch(name: str) -> BranchOutput | None:
        return BranchOutput(tensors[name], nothing) if name in tensors else None

    return Output(
        tensors["score"],
        tensors["map"],
        branch("score_prototype"),
        branch("score_memory"),
        tensors.get("drift"),
        tensors.get("appearance"),
        tensors.get("descriptor"),
    )


def join(parts: list[Arrays]) -> Arrays:
    """The outputs of several images as one batch."""
    named = [part.by_name() for part in parts]
    return Arrays(**{name: np.concatenate([part[name] for part in named]) for name in named[0]})
