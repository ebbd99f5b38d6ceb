"""Engines for a detector's outputs: torch, ONNX Runtime or OpenVINO, on so many cores."""

import os
import platform
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recap._process import usable_cores
from recap.errors import BundleError, RecapError, SettingsError, require
from recap.methods.base import Scorer
from recap.runtime.graph import INPUT
from recap.runtime.record import ExportRecord, read_graph, remedy
from recap.scoring.arrays import Arrays, join, named_arrays, tensors_by_name
from recap.scoring.bundle_folder import Bundle
from recap.types import FloatArray

ONNX_FILE = "model.onnx"
OPENVINO_FILE, OPENVINO_WEIGHTS = "model.xml", "model.bin"
_ERRORS_ONLY = 3
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
PACKAGES = ("torch", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Cores:
    """The cores that a runtime may use."""

    threads: int | None = None
    """Of all images together; None is what the library takes by itself."""
    lanes: int = 1
    """Images that run side by side, each on one core, if there is more than one."""

    @property
    def per_image(self) -> int | None:
        """Threads that one image may use."""
        return self.threads if self.lanes == 1 else 1

    def describe(self) -> dict[str, int | str]:
        """Say what is used, for the manifest."""
        return {"threads": self.threads or "all", "images_at_a_time": self.lanes}


def share_cores(threads: int | None, side_by_side: bool) -> Cores:
    """Take all cores, or as many as given, for one image or for as many images."""
    if threads is not None and threads < 1:
        raise SettingsError(f"threads = {threads}: give 1 or more.")
    if not side_by_side:
        return Cores(threads)
    lanes = threads or torch.get_num_threads()
    return Cores(lanes, lanes)


class TorchRuntime:
    """Runs a model where it lives. Threads are those of the whole process.

    For several images side by side the caller has to give torch one thread.
    """

    name = "torch"

    def __init__(self, model: Scorer, cores: Cores | None = None) -> None:
        self._model = model.eval()
        cores = cores or Cores()
        self.lanes = cores.lanes
        if cores.threads is not None and cores.lanes == 1:
            torch.set_num_threads(cores.threads)

    def run(self, pixels: FloatArray) -> Arrays:
        """Score 0..1 pixels (B, 3, S, S)."""
        with torch.inference_mode():
            output = self._model(torch.from_numpy(pixels).to(self._model.device))
        named = tensors_by_name(output)
        return named_arrays({name: value.cpu().numpy() for name, value in named.items()})

    def describe(self) -> dict[str, Any]:
        """Say what computes, for the manifest."""
        return {
            "runtime": self.name,
            "version": torch.__version__,
            "device": str(self._model.device),
            "threads": self.lanes if self.lanes > 1 else torch.get_num_threads(),
            "images_at_a_time": self.lanes,
        }


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
        if weights := {name: content for name, content in files.items() if name != ONNX_FILE}:
            options.add_external_initializers_from_files_in_memory(
                list(weights), list(weights.values()), list(map(len, weights.values()))
            )
        self._session = ort.InferenceSession(
            files[ONNX_FILE], options, providers=["CPUExecutionProvider"]
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
        """Say what computes, for the manifest."""
        return {"runtime": self.name, "version": self._version, **self._cores.describe()}


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
        model = core.read_model(files[OPENVINO_FILE], files[OPENVINO_WEIGHTS])
        model.reshape([1, 3, record.input_px, record.input_px])
        self._compiled = core.compile_model(model, "CPU", compile_options(self._cores))
        self._outputs, self._own = record.outputs, threading.local()
        self._version = openvino.__version__
        # Float graphs of a detector agree, whoever made them; int8 ones as their images did.
        self._graph = {} if record.runtime == "openvino" else {"graph": record.digest}

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
        """Say what computes, for the manifest."""
        own = {"runtime": self.name, "version": self._version, **self._graph}
        return {**own, **self._cores.describe()}


def open_graph(
    bundle: Bundle, kind: str, record: ExportRecord, cores: Cores | None = None
) -> OnnxRuntime | OpenvinoRuntime:
    """Read a graph that a bundle holds, and make it ready to run."""
    files = read_graph(bundle, kind, record)
    runtime = OnnxRuntime if kind == "onnx" else OpenvinoRuntime
    try:
        return runtime(files, record, cores)
    except RecapError:  # its package is not installed
        raise
    # Both packages raise errors of many kinds.
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise BundleError(
            f"{bundle.named(kind)} cannot be opened ({reason}). Run `{remedy(bundle, kind)}` again."
        ) from error


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


def machine_facts() -> dict[str, str]:
    """Name the processor, the cores this process may use, and the versions of all runtimes."""
    return {"processor": processor_name(), "cores": str(usable_cores()), **runtime_versions()}


def processor_name() -> str:
    """Return the processor's own name, where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def runtime_versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return installed versions; packages that are missing are left out."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
