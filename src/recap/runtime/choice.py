"""Which runtime scores: the one asked for, or the fastest on this machine."""

import logging
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from recap.errors import BundleError, RecapError, SettingsError
from recap.methods.training import choose_device
from recap.runtime.cores import Cores, share_cores
from recap.runtime.export import open_graph
from recap.runtime.measured import Measured, recall, remember, time_each
from recap.runtime.record import checked_record, record_for
from recap.runtime.torch import TorchRuntime
from recap.scoring.arrays import Arrays, Runtime
from recap.scoring.bundle_folder import Bundle
from recap.scoring.detector import Detector
from recap.scoring.predict import one_core_each
from recap.types import FloatArray

RuntimeName = Literal["torch", "onnx", "openvino", "openvino-int8", "auto"]
NAMES: tuple[str, ...] = get_args(RuntimeName)
FLOAT_KINDS = ("onnx", "openvino")
"""What auto chooses among, besides torch: int8 changes scores, so it is never chosen unasked."""
GAIN = 0.97
"""A graph must take less than this share of torch's time; below it a change is not worth it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Chosen:
    """A runtime, and why it was chosen."""

    runtime: Runtime
    why: str
    milliseconds: dict[str, float] = field(default_factory=dict)
    """Per image and runtime, as measured on this machine."""

    @property
    def name(self) -> str:
        """Such as torch, onnx, openvino."""
        return self.runtime.name

    @property
    def lanes(self) -> int:
        """Images that it runs side by side."""
        return self.runtime.lanes

    def run(self, pixels: FloatArray) -> Arrays:
        """Score 0..1 pixels (B, 3, S, S)."""
        return self.runtime.run(pixels)

    def describe(self) -> dict[str, Any]:
        """What computes and why, for the manifest."""
        measured = {"milliseconds_per_image": self.milliseconds} if self.milliseconds else {}
        return {**self.runtime.describe(), "why": self.why, **measured}


def device_for(device: str, runtime: str | None) -> str:
    """Where a detector goes that a runtime will score with; `auto` suits the runtime."""
    graph = runtime in NAMES and runtime not in ("torch", "auto")
    return str(choose_device("cpu" if graph and device == "auto" else device))


def choose_runtime(
    detector: Detector,
    name: str,
    folder: str | Path,
    threads: int | None = None,
    side_by_side: bool = False,
) -> Chosen:
    """Let a loaded detector score through a runtime; `folder` is the bundle it was loaded from.

    All threads work on one image, or, `side_by_side`, each on one of its own: faster for many
    images, which `recap.scoring.predict` then hands over from several threads. auto measures
    once per machine and detector, and remembers.
    """
    if name not in NAMES:
        raise SettingsError(f"No runtime is called '{name}'. Choose from: {', '.join(NAMES)}.")
    bundle, cores = Bundle(folder), share_cores(threads, side_by_side)
    if name == "auto":
        chosen = _automatic(detector, bundle, cores)
    else:
        chosen = Chosen(_open(detector, name, bundle, cores), "asked for")
    detector.runtime = chosen
    _log.info("Scoring with %s: %s", chosen.name, chosen.why)
    return chosen


def _open(detector: Detector, kind: str, bundle: Bundle, cores: Cores) -> Runtime:
    if kind == "torch":
        return TorchRuntime(detector.model, cores)
    if detector.model.device.type != "cpu":
        raise SettingsError(
            f"{kind} runs on the processor, but this detector is on {detector.model.device}. Use "
            "--device cpu, or --runtime torch."
        )
    return open_graph(bundle, kind, record_for(bundle, kind, detector.model), cores)


def _automatic(detector: Detector, bundle: Bundle, cores: Cores) -> Chosen:
    torch = TorchRuntime(detector.model, cores)
    if detector.model.device.type != "cpu":
        return Chosen(torch, f"the detector is on {detector.model.device}")
    records, left_out = _usable(detector, bundle)
    if not records:
        return Chosen(torch, "; ".join(left_out) or f"no graph: `recap export {bundle} --to …`")
    known = recall(records, cores)
    if known is None:
        known = _measure(detector, bundle, list(records), cores)
        remember(records, cores, known)
    why = "; ".join([known.in_words(), *left_out])
    best = known.fastest(GAIN)
    runtime = torch if best == "torch" else _open(detector, best, bundle, cores)
    return Chosen(runtime, why, known.milliseconds)


def _usable(detector: Detector, bundle: Bundle) -> tuple[dict[str, Any], list[str]]:
    """The float graphs that can be used here, and why others cannot."""
    records: dict[str, Any] = {}
    left_out = []
    for kind in FLOAT_KINDS:
        if not bundle.has(kind):
            continue
        try:
            records[kind] = checked_record(bundle, kind, detector.model)
        except BundleError as error:
            left_out.append(str(error))
    return records, left_out


def _measure(detector: Detector, bundle: Bundle, kinds: list[str], cores: Cores) -> Measured:
    runtimes: dict[str, Runtime] = {"torch": TorchRuntime(detector.model, cores)}
    left_out = {}
    for kind in kinds:
        try:
            runtimes[kind] = _open(detector, kind, bundle, cores)
        except RecapError as error:  # its package is not installed
            left_out[kind] = str(error)
    with one_core_each(detector) if cores.lanes > 1 else nullcontext():
        return time_each(runtimes, detector.model.encoder.input_px, left_out, cores.lanes)
