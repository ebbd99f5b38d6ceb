"""The OpenVINO graph of a bundle, in float32 or int8, on the processor."""

from pathlib import Path
from typing import Any

import numpy as np

from recap.extras import require
from recap.runtime.record import ExportRecord
from recap.scoring.arrays import Arrays, join
from recap.types import FloatArray

GRAPH = "model.xml"


class OpenvinoRuntime:
    """Runs images one by one: a score has the same bits in every batch.

    The graph is compiled for one image, as known shapes are faster than free ones.
    """

    def __init__(self, folder: Path, record: ExportRecord, threads: int | None = None) -> None:
        openvino = require("openvino", "openvino")
        self.name = record.runtime
        core = openvino.Core()
        model = core.read_model(folder / GRAPH)
        model.reshape([1, 3, record.input_px, record.input_px])
        self._compiled = core.compile_model(model, "CPU", compile_options(threads))
        self._outputs, self._threads = record.outputs, threads
        self._version = openvino.__version__

    def run(self, pixels: FloatArray) -> Arrays:
        """Score 0..1 pixels (B, 3, S, S)."""
        return join([self._one(image[None]) for image in pixels])

    def _one(self, pixels: FloatArray) -> Arrays:
        values = self._compiled(np.ascontiguousarray(pixels))
        # What comes back may be the graph's own memory, which the next image overwrites.
        return Arrays(**{name: np.array(values[i]) for i, name in enumerate(self._outputs)})

    def describe(self) -> dict[str, Any]:
        """What computes."""
        threads = self._threads or "all"
        return {"runtime": self.name, "version": self._version, "threads": threads}


def compile_options(threads: int | None) -> dict[str, Any]:
    """One image as fast as possible; float32 even where the processor offers bfloat16."""
    options: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    if threads is not None:
        options["INFERENCE_NUM_THREADS"] = threads
    return options
