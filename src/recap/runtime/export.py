"""Exporting a detector: its graph, written into the bundle once it agrees with torch.

ONNX comes from the traced graph, and OpenVINO from ONNX; in int8 weights and activations of the
encoder have eight bits, their ranges taken from calibration images.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recap._files import scratch_folder, write_atomic
from recap.data.cases import Found, find_cases
from recap.errors import BundleError, InputError, counted, require
from recap.progress import Progress, silent
from recap.runtime.engines import (
    ONNX_FILE,
    OPENVINO_FILE,
    OnnxRuntime,
    OpenvinoRuntime,
    TorchRuntime,
    open_graph,
    runtime_versions,
)
from recap.runtime.graph import INPUT, Decisions, decisions_of, output_names, quiet, trace
from recap.runtime.record import (
    ALLOWED,
    RECORD,
    ExportRecord,
    Target,
    check_pixels,
    decision_differences,
    file_digests,
    largest_differences,
    read_graph,
    record_for,
    source_digest,
)
from recap.scoring.arrays import Arrays, join, named_arrays
from recap.scoring.bundle_folder import Bundle
from recap.scoring.detector import Detector
from recap.types import FloatArray

_PACKAGES = (
    *("recap-ad", "torch", "transformers", "onnx", "onnxscript"),
    *("onnxruntime", "openvino", "nncf"),
)
MOST_IMAGES = 128
_FEWEST = 4
_SCOPES = "pkg.torch.onnx.name_scopes"
EXTERNAL_BYTES = 1_900_000_000
"""Weights beyond this go to a file of their own: one ONNX file holds at most 2 GB."""
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
    for package in (*_NEEDED[to], *(("nncf",) if kind != to else ())):
        require(package, to)  # before the work, which takes minutes
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
        model = quantise(model, graph.folder / ONNX_FILE, images)
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
    """Give the digest of what a graph's decisions come from, if it makes any."""
    return None if decisions is None else decisions.digest


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
    """Measure how far the scores of one runtime are from another's."""
    change: Sequence[float] = np.abs(expected.score - seen.score).tolist()
    return {
        "images": len(change),
        "mean_change_of_score": float(np.mean(change)),
        "largest_change_of_score": float(np.max(change)),
        "spread_of_scores": float(expected.score.std()),
    }


def calibration_pixels(detector: Detector, folder: Path) -> FloatArray:
    """Images of a folder, evenly drawn, as the graph takes them: (N, 3, S, S)."""
    reading = detector.card.reading
    with scratch_folder() as scratch:
        cases = find_cases([folder], scratch).cases
        # Never two cases at once: a folder of pictures need not fit into memory.
        places = [(found, n) for found in cases for n in range(len(found.open(reading).images))]
        step = -(-len(places) // MOST_IMAGES)
        squares = list(_squares(detector, places[:: max(1, step)]))
    if len(squares) < _FEWEST:
        raise InputError(
            f"{folder} has {counted(len(squares), 'image')}; int8 needs {_FEWEST} or more to find "
            "the range of its numbers (some 100 are better). Give another --calibration."
        )
    return np.stack(squares)


def _squares(detector: Detector, places: Sequence[tuple[Found, int]]) -> Iterator[FloatArray]:
    """The images at these places, those of a case one after the other."""
    for _, own in groupby(places, lambda place: place[0].name):
        chosen = list(own)
        case = chosen[0][0].open(detector.card.reading)
        yield from (detector.preprocess(case.images[n]).numpy() for _, n in chosen)
        del case  # before the next is opened


def quantise(model: Any, onnx_file: Path, pixels: FloatArray) -> Any:
    """An OpenVINO model with its encoder in int8, quantised after training.

    Adapters, prototypes and memory stay in float32: they are a small part of the time, and cosines
    that a scale of 100 magnifies are where eight bits hurt.
    """
    nncf = require("nncf", "openvino")
    head = _outside_encoder(onnx_file)
    names = [operation.get_friendly_name() for operation in model.get_ops()]
    kept = [name for name in names if name.partition("/")[0] in head]
    with quiet():
        return nncf.quantize(
            model,
            nncf.Dataset([image[None] for image in pixels]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(pixels),
            ignored_scope=nncf.IgnoredScope(names=kept, validate=False),
        )


def _outside_encoder(onnx_file: Path) -> set[str]:
    """Names of the operations that the exporter saw in no module of the encoder."""
    onnx = require("onnx", "onnx")
    graph = onnx.load(str(onnx_file), load_external_data=False).graph
    scopes = {
        node.name: {entry.key: entry.value for entry in node.metadata_props}.get(_SCOPES, "")
        for node in graph.node
    }
    return {name for name, scope in scopes.items() if "'model.encoder." not in scope}


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
    tensors = [*program.state_dict.values(), *program.constants.values()]
    size = sum(t.numel() * t.element_size() for t in tensors if hasattr(t, "element_size"))
    exported.save(folder / ONNX_FILE, external_data=size > EXTERNAL_BYTES)
    return int(exported.model.opset_imports[""])


def read_into_openvino(onnx_folder: Path) -> Any:
    """An OpenVINO model from an ONNX graph.

    Not from the traced graph itself: OpenVINO 2026.4 takes it without a word and then computes
    something else where an operation works in place. Not by `convert_model` either: it takes a
    path with a comma for two.
    """
    openvino = require("openvino", "openvino")
    with quiet():
        return openvino.Core().read_model(onnx_folder / ONNX_FILE)


def save_openvino(model: Any, names: Sequence[str], folder: Path) -> None:
    """Save an OpenVINO model with named outputs."""
    openvino = require("openvino", "openvino")
    model.inputs[0].get_tensor().set_names({INPUT})
    for output, name in zip(model.outputs, names, strict=True):
        output.get_tensor().set_names({name})
    # Left to itself it halves the weights, and the scores with them.
    openvino.save_model(model, folder / OPENVINO_FILE, compress_to_fp16=False)
