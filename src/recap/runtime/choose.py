"""Loading detectors, and what computes: the runtime asked for, or the fastest on this machine."""

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from recap._files import write_atomic
from recap.encoders._cache import cache_dir
from recap.errors import BundleError, InputError, RecapError, SettingsError
from recap.methods.training import choose_device
from recap.runtime.engines import Cores, TorchRuntime, machine_facts, open_graph, share_cores
from recap.runtime.record import (
    ALLOWED,
    ExportRecord,
    checked_record,
    largest_differences,
    record_for,
)
from recap.scoring.arrays import Arrays, Runtime
from recap.scoring.bundle import read_card
from recap.scoring.bundle_folder import Bundle
from recap.scoring.detector import Detector, load_detector
from recap.scoring.predict import one_core_each
from recap.types import FloatArray

RuntimeName = Literal["torch", "onnx", "openvino", "openvino-int8", "auto"]
NAMES: tuple[str, ...] = get_args(RuntimeName)
FLOAT_KINDS = ("onnx", "openvino")
"""What auto chooses among, besides torch: int8 changes scores, so it is never chosen unasked."""
GAIN = 0.97
"""A graph must take less than this share of torch's time; below it a change is not worth it."""
ROUNDS = 5
"""Of measuring; the best of them counts."""

_log = logging.getLogger(__name__)


def load(
    path: str | Path,
    device: str = "auto",
    random_weights: bool = False,
    encoder: Any = None,
    *,
    runtime: str | None = None,
    threads: int | None = None,
) -> Detector:
    """Load a saved detector, ours or another method's.

    Its encoder must be here and be the one it was fitted on. An encoder that is loaded already
    can be given, and then serves this detector too. `device` is auto, cpu or cuda. `runtime` is
    torch (also when not given), onnx, openvino (see `recap export`) or auto, the fastest of these
    on this machine.
    """
    detector = load_detector(path, device_for(device, runtime), random_weights, encoder)
    if runtime is not None or threads is not None:
        choose_runtime(detector, runtime or "torch", Path(path), threads)
    return detector


def load_many(
    paths: Sequence[str | Path],
    device: str = "auto",
    random_weights: bool = False,
    runtime: str | None = None,
) -> list[Detector]:
    """Load detectors to score many images, which a runtime that is given then runs side by side.

    Those with the same encoder settings share one encoder in memory.
    """
    where = device_for(device, runtime)
    encoders: dict[str, Any] = {}
    detectors = []
    for path in paths:
        card = read_card(Path(path))
        key = f"{card.settings.method} {card.encoder.sha256} {card.settings.seed} "
        key += card.settings.encoder.model_dump_json()
        detector = load_detector(path, where, random_weights, encoders.get(key))
        encoders.setdefault(key, detector.model.encoder)
        if runtime is not None:
            choose_runtime(detector, runtime, Path(path), side_by_side=True)
        detectors.append(detector)
    return detectors


class Measured(BaseModel):
    """The time of each runtime, and why others have none."""

    model_config = ConfigDict(extra="forbid")
    milliseconds: dict[str, float]
    """Per image, the best of some rounds."""
    left_out: dict[str, str]
    machine: dict[str, str]

    def fastest(self, gain: float) -> str:
        """The fastest runtime; torch unless another takes less than `gain` of its time."""
        best = min(self.milliseconds, key=lambda name: self.milliseconds[name])
        return best if self.milliseconds[best] < gain * self.milliseconds["torch"] else "torch"

    def in_words(self) -> str:
        """The times as one line."""
        times = [f"{name} {ms:.1f} ms" for name, ms in self.milliseconds.items()]
        notes = [f"{name} left out ({why})" for name, why in self.left_out.items()]
        return "measured on this machine: " + ", ".join([*times, *notes])


def time_each(
    runtimes: Mapping[str, Runtime],
    input_px: int,
    left_out: dict[str, str] | None = None,
    lanes: int = 1,
) -> Measured:
    """Best time of each runtime per image; they take turns, so that a slow moment hits all of them.

    A runtime that does not agree with torch on this machine is left out, however fast it is.
    """
    pixels = np.random.default_rng(0).random((1, 3, input_px, input_px), np.float32)
    expected = runtimes["torch"].run(pixels)
    left_out = dict(left_out or {})
    for name, runtime in runtimes.items():
        difference = max(largest_differences(expected, runtime.run(pixels)).values())
        if difference > ALLOWED:
            left_out[name] = f"differs from torch by {difference:.2g} on this machine"
    best = {name: float("inf") for name in runtimes if name not in left_out}
    with ThreadPoolExecutor(lanes) as pool:
        for _ in range(ROUNDS):
            for name in best:
                start = time.perf_counter()
                list(pool.map(runtimes[name].run, [pixels] * lanes))
                best[name] = min(best[name], 1000 * (time.perf_counter() - start) / lanes)
    return Measured(milliseconds=best, left_out=left_out, machine=machine_facts())


def recall(records: Mapping[str, ExportRecord], cores: Cores) -> Measured | None:
    """Recall what was measured before for these graphs on this machine, if anything."""
    try:
        return Measured.model_validate_json(_file(records, cores).read_text(encoding="utf-8"))
    except (OSError, ValidationError, ValueError):
        return None


def remember(records: Mapping[str, ExportRecord], cores: Cores, measured: Measured) -> None:
    """Keep a measurement; a cache that cannot be written is measured again next time."""
    try:
        write_atomic(_file(records, cores), measured.model_dump_json(indent=2) + "\n")
    except InputError:
        return


def _file(records: Mapping[str, ExportRecord], cores: Cores) -> Path:
    graphs = {kind: [record.source, record.files] for kind, record in records.items()}
    key = json.dumps([graphs, machine_facts(), cores.threads, cores.lanes], sort_keys=True)
    return cache_dir() / "runtimes" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


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
        """Say what computes and why, for the manifest."""
        measured = {"milliseconds_per_image": self.milliseconds} if self.milliseconds else {}
        return {**self.runtime.describe(), "why": self.why, **measured}


def device_for(device: str, runtime: str | None) -> str:
    """Name the device of a detector that a runtime will score with; `auto` suits the runtime."""
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
