"""From a traced graph to the files of a runtime."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recap.errors import require
from recap.runtime import onnx as onnx_runtime
from recap.runtime import openvino as openvino_runtime
from recap.runtime.graph import INPUT
from recap.runtime.quiet import quiet

EXTERNAL_BYTES = 1_900_000_000
"""Weights beyond this go to a file of their own: one ONNX file holds at most 2 GB."""


def write_onnx(program: Any, names: Sequence[str], folder: Path) -> int:
    """Write a traced graph as ONNX; returns its opset."""
    import torch

    require("onnxscript", "onnx")
    with quiet():
        exported = torch.onnx.export(
            program,
            dynamo=True,
            input_names=[INPUT],
            output_names=list(names),
            verbose=False,
        )
    assert exported is not None
    exported.save(
        folder / onnx_runtime.GRAPH, external_data=_weight_bytes(program) > EXTERNAL_BYTES
    )
    return int(exported.model.opset_imports[""])


def read_into_openvino(onnx_folder: Path) -> Any:
    """An OpenVINO model from an ONNX graph.

    Not from the traced graph itself: OpenVINO 2026.4 takes it without a word and then computes
    something else where an operation works in place. Not by `convert_model` either: it takes a
    path with a comma for two.
    """
    openvino = require("openvino", "openvino")
    with quiet():
        return openvino.Core().read_model(onnx_folder / onnx_runtime.GRAPH)


def save_openvino(model: Any, names: Sequence[str], folder: Path) -> None:
    """Save an OpenVINO model with named outputs."""
    openvino = require("openvino", "openvino")
    model.inputs[0].get_tensor().set_names({INPUT})
    for output, name in zip(model.outputs, names, strict=True):
        output.get_tensor().set_names({name})
    # Left to itself it halves the weights, and the scores with them.
    openvino.save_model(model, folder / openvino_runtime.GRAPH, compress_to_fp16=False)


def _weight_bytes(program: Any) -> int:
    tensors = [*program.state_dict.values(), *program.constants.values()]
    return sum(t.numel() * t.element_size() for t in tensors if hasattr(t, "element_size"))
