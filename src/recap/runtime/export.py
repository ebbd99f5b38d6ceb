"""Exporting a detector: its graph, written into the bundle once it agrees with torch."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recap.atomic import write_atomic
from recap.errors import BundleError, InputError
from recap.runtime.check import ALLOWED, check_pixels, largest_differences
from recap.runtime.convert import write_onnx, write_openvino
from recap.runtime.graph import output_names, trace
from recap.runtime.machine import runtime_versions
from recap.runtime.onnx import OnnxRuntime
from recap.runtime.openvino import OpenvinoRuntime
from recap.runtime.quantise import calibration_pixels, write_int8
from recap.runtime.record import RECORD, ExportRecord, Target, file_digests, source_digest
from recap.runtime.torch import TorchRuntime
from recap.scoring.arrays import Arrays, Runtime
from recap.scoring.detector import Detector
from recap.types import FloatArray

Progress = Callable[[str], None]
_PACKAGES = ("recap-ad", "torch", "transformers", "onnx", "onnxscript", "onnxruntime")


def export_bundle(
    detector: Detector,
    bundle: Path,
    to: Target,
    calibration: Path | None = None,
    progress: Progress = lambda step: None,
) -> ExportRecord:
    """Write the graph of a detector into its bundle and return its record.

    With calibration images (a folder) the graph computes in int8. A float graph that differs from
    torch by more than `ALLOWED` on the built-in images is refused and not kept.
    """
    if calibration is not None and to != "openvino":
        raise InputError(f"int8 is made for openvino, not for {to}. Use --to openvino --int8.")
    kind = to if calibration is None else f"{to}-int8"
    with tempfile.TemporaryDirectory(dir=bundle, prefix=".exporting-") as scratch:
        fresh = Path(scratch) / kind
        fresh.mkdir()
        record = _write(detector, fresh, to, kind, calibration, progress)
        write_atomic(fresh / RECORD, record.model_dump_json(indent=2) + "\n")
        if (bundle / kind).exists():
            shutil.move(bundle / kind, Path(scratch) / "old")
        fresh.rename(bundle / kind)
    return record


def _write(
    detector: Detector,
    folder: Path,
    to: Target,
    kind: str,
    calibration: Path | None,
    progress: Progress,
) -> ExportRecord:
    model = detector.model
    images = None if calibration is None else calibration_pixels(detector, calibration)
    progress("Tracing the detector")
    names, program, opset = output_names(model), trace(model), None
    progress(f"Writing the graph for {kind}")
    if to == "onnx":
        opset = write_onnx(program, names, folder)
    elif images is None:
        write_openvino(program, names, folder)
    else:
        write_int8(program, names, images, folder)
    record = ExportRecord(
        runtime=kind,
        versions=runtime_versions((*_PACKAGES, "openvino", "nncf")),
        opset=opset,
        source=source_digest(model),
        input_px=model.encoder.input_px,
        outputs=names,
        files=file_digests(folder),
        checked_on=0,
        largest_difference={},
    )
    progress("Comparing it with torch")
    return _checked(detector, open_graph(folder, record), record, images)


def open_graph(folder: Path, record: ExportRecord, threads: int | None = None) -> Runtime:
    """The runtime that a graph is for."""
    if record.runtime == "onnx":
        return OnnxRuntime(folder, record, threads)
    return OpenvinoRuntime(folder, record, threads)


def _checked(
    detector: Detector, runtime: Runtime, record: ExportRecord, images: FloatArray | None
) -> ExportRecord:
    """The record with what was measured; a float graph that is too far off is refused."""
    torch = TorchRuntime(detector.model)
    pixels = check_pixels(detector)
    expected, seen = torch.run(pixels), runtime.run(pixels)
    differences = largest_differences(expected, seen)
    int8: dict[str, Any] | None = None
    if images is not None:
        int8 = {
            "built_in": score_change(expected, seen),
            "calibration": score_change(torch.run(images), runtime.run(images)),
        }
    elif max(differences.values()) > ALLOWED:
        worst = max(differences, key=lambda name: differences[name])
        raise BundleError(
            f"The graph for {record.runtime} differs from torch by {differences[worst]:.2g} in its "
            f"{worst}, more than {ALLOWED:g}: it was not kept. Score with --runtime torch."
        )
    return record.model_copy(
        update={
            "checked_on": len(pixels),
            "largest_difference": differences,
            "int8": int8,
        }
    )


def score_change(expected: Arrays, seen: Arrays) -> dict[str, float | int]:
    """How far the scores of one runtime are from another's."""
    change: Sequence[float] = np.abs(expected.score - seen.score).tolist()
    return {
        "images": len(change),
        "mean_change_of_score": float(np.mean(change)),
        "largest_change_of_score": float(np.max(change)),
        "spread_of_scores": float(expected.score.std()),
    }
