"""What an exported graph says about itself: a JSON file beside it in the bundle."""

import hashlib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from recap.errors import BundleError
from recap.fetch import sha256_of
from recap.methods.base import Scorer
from recap.scoring.detector import head_tensors

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


def file_digests(folder: Path) -> dict[str, str]:
    """sha256 of every file of a graph but its record."""
    files = sorted(file for file in folder.iterdir() if file.name != RECORD)
    return {file.name: sha256_of(file) for file in files}


def read_record(folder: Path) -> ExportRecord:
    """Read the record of one exported graph."""
    path = folder / RECORD
    try:
        return ExportRecord.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise BundleError(
            f"{path} is missing or damaged ({first}). Run `recap export` again."
        ) from error


def exports(bundle: Path) -> dict[str, ExportRecord]:
    """The graphs that a bundle holds, by the name of their runtime."""
    return {
        kind: read_record(bundle / kind) for kind in KINDS if (bundle / kind / RECORD).is_file()
    }


def checked_record(bundle: Path, kind: str, model: Scorer) -> ExportRecord:
    """The record of a graph, if it is whole and this detector's."""
    folder = bundle / kind
    if not folder.is_dir():
        raise BundleError(f"{bundle} has no graph for {kind}. Run `{remedy(bundle, kind)}`.")
    record = read_record(folder)
    if record.source != source_digest(model):
        raise BundleError(
            f"{folder} was made from another detector. Run `{remedy(bundle, kind)}` again."
        )
    if file_digests(folder) != record.files:
        raise BundleError(
            f"{folder} is damaged: its files have other digests than {RECORD} says. Run "
            f"`{remedy(bundle, kind)}` again."
        )
    return record


def remedy(bundle: Path, kind: str) -> str:
    """The command that makes a graph."""
    target, _, int8 = kind.partition("-")
    return f"recap export {bundle} --to {target}" + (" --int8 --calibration DIR" if int8 else "")
