"""The OpenVINO graph of a bundle, in float32 or int8, on the processor."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from recap.errors import require
from recap.runtime.cores import Cores
from recap.runtime.record import ExportRecord
from recap.scoring.arrays import Arrays, join, named_arrays
from recap.types import FloatArray

GRAPH, WEIGHTS, FLOAT = "model.xml", "model.bin", "openvino"


class OpenvinoRuntime:
    """Runs images one by one: a score has the same bits in every batch.

    The graph is compiled for one image, as known shapes are faster than free ones.
    """

    def __init__(
        self, files: Mapping[str, bytes], record: ExportRecord, cores: Cores | None = None
    ) -> None:
        openvino = require("openvino", "openvino")
        self.name = record.runtime
        self._cores = cores or Cores()
        self.lanes = self._cores.lanes
        core = openvino.Core()
        model = core.read_model(files[GRAPH], files[WEIGHTS])
        model.reshape([1, 3, record.input_px, record.input_px])
        self._compiled = core.compile_model(model, "CPU", compile_options(self._cores))
        self._outputs, self._own = record.outputs, threading.local()
        self._version = openvino.__version__
        # Float graphs of a detector agree, whoever made them; int8 ones as their images did.
        self._graph = {} if record.runtime == FLOAT else {"graph": record.digest}

    def run(self, pixels: FloatArray) -> Arrays:
        """Score 0..1 pixels (B, 3, S, S)."""
        return join([named_arrays(self.run_one(image)) for image in pixels])

    def run_one(self, image: FloatArray) -> dict[str, FloatArray]:
        """All that the graph returns for one image (3, S, S), decisions too, by name."""
        if not hasattr(self._own, "request"):  # one cannot serve two threads
            self._own.request = self._compiled.create_infer_request()
        values = self._own.request.infer(np.ascontiguousarray(image[None]))
        # What comes back may be the graph's own memory, which the next image overwrites.
        return {name: np.array(values[i]) for i, name in enumerate(self._outputs)}

    def describe(self) -> dict[str, Any]:
        """What computes."""
        own = {"runtime": self.name, "version": self._version, **self._graph}
        return {**own, **self._cores.describe()}


def compile_options(cores: Cores) -> dict[str, Any]:
    """One image as fast as possible, or many; float32 even where bfloat16 is offered."""
    options: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY" if cores.lanes == 1 else "THROUGHPUT",
        "NUM_STREAMS": cores.lanes,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    if cores.threads is not None:
        options["INFERENCE_NUM_THREADS"] = cores.threads
    return options
