"""The ONNX graph of a bundle, run by ONNX Runtime on the processor."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from recap.errors import require
from recap.runtime.cores import Cores
from recap.runtime.graph import INPUT
from recap.runtime.record import ExportRecord
from recap.scoring.arrays import Arrays, join, named_arrays
from recap.types import FloatArray

GRAPH = "model.onnx"
_ERRORS_ONLY = 3
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


class OnnxRuntime:
    """Runs images one by one: a score has the same bits in every batch."""

    name = "onnx"

    def __init__(
        self, files: Mapping[str, bytes], record: ExportRecord, cores: Cores | None = None
    ) -> None:
        ort = require("onnxruntime", "onnx")
        options = ort.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        self._cores = cores or Cores()
        self.lanes = self._cores.lanes
        if self._cores.per_image is not None:
            options.intra_op_num_threads = self._cores.per_image
        # From memory, and nothing else: a graph may name any file of the machine as its weights.
        options.add_session_config_entry(_WEIGHTS_FOLDER, os.devnull)
        if weights := {name: content for name, content in files.items() if name != GRAPH}:
            options.add_external_initializers_from_files_in_memory(
                list(weights), list(weights.values()), list(map(len, weights.values()))
            )
        self._session = ort.InferenceSession(
            files[GRAPH], options, providers=["CPUExecutionProvider"]
        )
        self._outputs, self._version = record.outputs, ort.__version__

    def run(self, pixels: FloatArray) -> Arrays:
        """Score 0..1 pixels (B, 3, S, S)."""
        return join([named_arrays(self.run_one(image)) for image in pixels])

    def run_one(self, image: FloatArray) -> dict[str, FloatArray]:
        """All that the graph returns for one image (3, S, S), decisions too, by name."""
        given = {INPUT: np.ascontiguousarray(image[None])}
        return dict(zip(self._outputs, self._session.run(self._outputs, given), strict=True))

    def describe(self) -> dict[str, Any]:
        """What computes."""
        return {"runtime": self.name, "version": self._version, **self._cores.describe()}
