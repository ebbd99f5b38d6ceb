"""Exporting a detector: its graph, written into the bundle once it agrees with torch."""

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recap._files import write_atomic
from recap.errors import BundleError, InputError, RecapError, require
from recap.progress import Progress, silent
from recap.runtime.check import (
    ALLOWED,
    check_pixels,
    decision_differences,
    largest_differences,
)
from recap.runtime.convert import read_into_openvino, save_openvino, write_onnx
from recap.runtime.cores import Cores
from recap.runtime.decisions import Decisions, decisions_of
from recap.runtime.graph import output_names, trace
from recap.runtime.machine import runtime_versions
from recap.runtime.onnx import GRAPH, OnnxRuntime
from recap.runtime.openvino import OpenvinoRuntime
from recap.runtime.quantise import calibration_pixels, quantise
from recap.runtime.record import (
    RECORD,
    ExportRecord,
    Target,
    file_digests,
    read_graph,
    record_for,
    remedy,
    source_digest,
)
from recap.runtime.torch import TorchRuntime
from recap.scoring.arrays import Arrays, join, named_arrays
from recap.scoring.bundle_folder import Bundle
from recap.scoring.detector import Detector
from recap.types import FloatArray

_PACKAGES = (
    *("recap-ad", "torch", "transformers", "onnx", "onnxscript"),
    *("onnxruntime", "openvino", "nncf"),
)
_NEEDED: dict[Target, tuple[str, ...]] = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino"),
}


def export_bundle(
    detector: Detector,
    folder: str | Path,
    to: Target,
    calibration: Path | None = None,
    progress: Progress = silent,
) -> ExportRecord:
    """Write the graph of a detector into its bundle, a folder, and return its record.

    With calibration images (a folder) the graph computes in int8. A float graph that differs from
    torch by more than `ALLOWED` on the built-in images is refused and not kept.
    """
    if calibration is not None and to != "openvino":
        raise InputError(f"int8 is made for openvino, not for {to}. Use --to openvino --int8.")
    kind = to if calibration is None else f"{to}-int8"
    _require_packages(to, kind)
    images = None if calibration is None else calibration_pixels(detector, calibration)
    decisions = decisions_of(detector)
    bundle = Bundle(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".exporting-") as scratch:
        graph = _onnx_graph(detector, decisions, bundle, Path(scratch), to, progress)
        fresh = graph.folder
        if to == "openvino":
            progress("export", 0, 0, f"Converting it for {kind}")
            fresh = _convert(graph, Path(scratch) / kind, images)
        made = Bundle(scratch)
        record = _record(detector, decisions, kind, graph, file_digests(made, kind))
        progress("export", 0, 0, "Comparing it with torch")
        record = _checked(detector, decisions, open_graph(made, kind, record), record, images)
        write_atomic(fresh / RECORD, record.model_dump_json(indent=2) + "\n")
        bundle.put_folder(fresh, kind, Path(scratch) / "old")
    return record


def _require_packages(to: Target, kind: str) -> None:
    """Before the work, which takes minutes: the packages of the extra that serves this runtime."""
    for package in (*_NEEDED[to], *(("nncf",) if kind != to else ())):
        require(package, to)


class _OnnxGraph(NamedTuple):
    folder: Path
    names: list[str]
    opset: int


def _onnx_graph(
    detector: Detector,
    decisions: Decisions | None,
    bundle: Bundle,
    scratch: Path,
    to: Target,
    progress: Progress,
) -> _OnnxGraph:
    """The ONNX graph, from which OpenVINO's is made; one that the bundle has serves for that."""
    folder = scratch / "onnx"
    folder.mkdir()
    if to != "onnx" and bundle.has("onnx"):
        with contextlib.suppress(BundleError):  # of another detector, or damaged: made anew
            known = record_for(bundle, "onnx", detector.model)
            if known.opset is not None and known.calibration == _digest(decisions):
                for name, content in read_graph(bundle, "onnx", known).items():
                    write_atomic(folder / name, content)
                return _OnnxGraph(folder, known.outputs, known.opset)
    progress("export", 0, 0, "Tracing the detector")
    names = output_names(detector.model, decisions)
    program = trace(detector.model, decisions)
    progress("export", 0, 0, "Writing the graph as ONNX")
    return _OnnxGraph(folder, names, write_onnx(program, names, folder))


def _convert(graph: _OnnxGraph, folder: Path, images: FloatArray | None) -> Path:
    """OpenVINO's graph from the ONNX graph; in int8 where there are calibration images."""
    folder.mkdir()
    model = read_into_openvino(graph.folder)
    if images is not None:
        model = quantise(model, graph.folder / GRAPH, images)
    save_openvino(model, graph.names, folder)
    return folder


def _record(
    detector: Detector,
    decisions: Decisions | None,
    kind: str,
    graph: _OnnxGraph,
    files: dict[str, str],
) -> ExportRecord:
    return ExportRecord(
        runtime=kind,
        versions=runtime_versions(_PACKAGES),
        opset=graph.opset,
        source=source_digest(detector.model),
        input_px=detector.model.encoder.input_px,
        outputs=graph.names,
        calibration=_digest(decisions),
        files=files,
        checked_on=0,
        largest_difference={},
    )


def _digest(decisions: Decisions | None) -> str | None:
    """What a graph's decisions come from, if it makes any."""
    return None if decisions is None else decisions.digest


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


def _checked(
    detector: Detector,
    decisions: Decisions | None,
    runtime: OnnxRuntime | OpenvinoRuntime,
    record: ExportRecord,
    images: FloatArray | None,
) -> ExportRecord:
    """The record with what was measured; a float graph that is too far off is refused."""
    torch = TorchRuntime(detector.model)
    pixels = check_pixels(detector)
    found = [runtime.run_one(image) for image in pixels]
    expected, seen = torch.run(pixels), join([named_arrays(one) for one in found])
    differences = largest_differences(expected, seen)
    if decisions is not None:
        differences |= decision_differences(decisions, found)
    int8: dict[str, Any] | None = None
    if images is not None:
        # One by one, as the graph does it: all at once may take more memory than there is.
        wanted = join([torch.run(image[None]) for image in images])
        int8 = {
            "built_in": score_change(expected, seen),
            "calibration": score_change(wanted, runtime.run(images)),
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
