"""The record of an exported graph, with how far it is from torch: a file in the bundle."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from recap.data.phantom import PHANTOMS, phantom
from recap.errors import BundleError
from recap.io import image_from_array
from recap.methods.base import Scorer
from recap.runtime.graph import Decisions
from recap.scoring.arrays import Arrays
from recap.scoring.bundle_folder import Bundle
from recap.scoring.detector import Detector, head_tensors
from recap.types import FloatArray

Target = Literal["onnx", "openvino"]
RECORD = "export.json"
KINDS = ("onnx", "openvino", "openvino-int8")
"""Folders of graphs within a bundle, and the names of the runtimes that use them."""


class ExportRecord(BaseModel):
    """Of what a graph was made, with what, and how far it is from torch."""

    model_config = ConfigDict(extra="forbid")
    runtime: str
    versions: dict[str, str]
    opset: int | None = None
    """Of the ONNX graph that it is or was made from."""
    source: str
    """Digest of the detector's numbers and of its encoder's: another detector needs another."""
    input_px: int
    outputs: list[str]
    calibration: str | None = None
    """Digest of the calibration that its decisions come from; None if it makes none."""
    files: dict[str, str]
    """sha256 by file name."""
    checked_on: int
    """Built-in images that it was compared with torch on."""
    largest_difference: dict[str, float]
    """By output."""
    int8: dict[str, Any] | None = None
    """How far int8 changes the score, on the calibration images and on the built-in ones."""

    @property
    def digest(self) -> str:
        """Identifies the graph by its files."""
        return hashlib.sha256(repr(sorted(self.files.items())).encode()).hexdigest()


def source_digest(model: Scorer) -> str:
    """Identifies the numbers of a detector; a calibration of its scores changes nothing."""
    encoder = model.encoder
    digest = hashlib.sha256(f"{encoder.checksum} {encoder.input_px}".encode())
    for name, tensor in sorted(head_tensors(model).items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def file_digests(bundle: Bundle, kind: str) -> dict[str, str]:
    """sha256 of every file of a graph but its record."""
    digests = {}
    for name in _graph_files(bundle, kind):
        with bundle.open(name) as file:
            digests[_last(name)] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def read_graph(bundle: Bundle, kind: str, record: ExportRecord) -> dict[str, bytes]:
    """Read the files of a graph, by name; they are those that its record was written with."""
    files = {_last(name): bundle.read(name) for name in _graph_files(bundle, kind)}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    _refuse_others(bundle, kind, record, digests)
    return files


def read_record(bundle: Bundle, kind: str) -> ExportRecord:
    """Read the record of one exported graph."""
    name = f"{kind}/{RECORD}"
    try:
        return ExportRecord.model_validate_json(bundle.read(name))
    except (OSError, ValidationError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise BundleError(
            f"{bundle.named(name)} is missing or damaged ({first}). Run `recap export` again."
        ) from error


def exports(bundle: Bundle) -> dict[str, ExportRecord]:
    """The graphs that a bundle holds, by the name of their runtime."""
    return {kind: read_record(bundle, kind) for kind in KINDS if bundle.has(f"{kind}/{RECORD}")}


def record_for(bundle: Bundle, kind: str, model: Scorer) -> ExportRecord:
    """Read the record of a graph of this very detector."""
    if not bundle.has(kind):
        raise BundleError(f"{bundle} has no graph for {kind}. Run `{remedy(bundle, kind)}`.")
    record = read_record(bundle, kind)
    if record.runtime != kind or record.source != source_digest(model):
        raise BundleError(
            f"{bundle.named(kind)} was made from another detector. Run `{remedy(bundle, kind)}` "
            "again."
        )
    return record


def checked_record(bundle: Bundle, kind: str, model: Scorer) -> ExportRecord:
    """Read the record of a graph that is whole and this detector's."""
    record = record_for(bundle, kind, model)
    _refuse_others(bundle, kind, record, file_digests(bundle, kind))
    return record


def remedy(bundle: Bundle, kind: str) -> str:
    """The command that makes a graph."""
    target, _, int8 = kind.partition("-")
    return f"recap export {bundle} --to {target}" + (" --int8 --calibration DIR" if int8 else "")


def _graph_files(bundle: Bundle, kind: str) -> list[str]:
    return [name for name in bundle.files(kind) if _last(name) != RECORD]


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _refuse_others(
    bundle: Bundle, kind: str, record: ExportRecord, digests: dict[str, str]
) -> None:
    if digests != record.files:
        raise BundleError(
            f"{bundle.named(kind)} is damaged: its files have other digests than {RECORD} says. "
            f"Run `{remedy(bundle, kind)}` again."
        )


ALLOWED = 1e-4
"""The largest difference of a score, a map or any other output that a float graph may have."""

_SIZES_PX = (240, 97, 400)


def check_pixels(detector: Detector) -> FloatArray:
    """Phantoms with and without a lesion at several sizes, noise and a blank: (N, 3, S, S)."""
    rng = np.random.default_rng(0)
    pictures = [
        phantom(name, rng, bool(index % 2), _SIZES_PX[index % len(_SIZES_PX)])[0]
        for index, name in enumerate(PHANTOMS)
    ]
    pictures += [
        rng.random((64, 128)).astype(np.float32),
        rng.random((300, 200, 3)).astype(np.float32),
        np.zeros((50, 50), np.float32),
    ]
    squares = [detector.preprocess(image_from_array(picture)) for picture in pictures]
    return np.stack([square.numpy() for square in squares])


def largest_differences(one: Arrays, two: Arrays) -> dict[str, float]:
    """Of every output; infinite for one that a side lacks or that is not a number."""
    first, second = one.by_name(), two.by_name()
    return {name: _difference(first.get(name), second.get(name)) for name in first | second}


@torch.inference_mode()
def decision_differences(
    decisions: Decisions, found: Sequence[Mapping[str, FloatArray]]
) -> dict[str, float]:
    """The largest difference of each decision between a graph and torch, image by image.

    Torch decides on the graph's own score: if rounding moves a score past a bound, that is no fault
    of the decision.
    """
    differences: dict[str, float] = {}
    for one in found:
        given = {name: torch.from_numpy(value) for name, value in one.items()}
        for name, value in decisions(given["score"], given.get("descriptor")).items():
            difference = _difference(value.numpy(), one.get(name))
            differences[name] = max(difference, differences.get(name, 0.0))
    return differences


def _difference(one: FloatArray | None, two: FloatArray | None) -> float:
    if one is None or two is None or one.shape != two.shape:
        return float("inf")
    largest = float(np.abs(one - two).max(initial=0))
    return largest if np.isfinite(largest) else float("inf")
