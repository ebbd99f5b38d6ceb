"""Every kind of detector becomes a graph, and int8 says what it changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import recap
from recap.config import Settings
from recap.data.benchmark import Domain
from recap.errors import InputError
from recap.runtime import export
from recap.runtime.engines import TorchRuntime
from recap.runtime.graph import Graph, output_names, trace
from recap.runtime.record import ExportRecord, Target, exports
from recap.scoring.arrays import Arrays
from recap.scoring.bundle_folder import Bundle
from recap.scoring.calibration import calibrate_scores
from recap.scoring.detector import Detector
from recap.scoring.fit import fit_sources
from recap.types import FloatArray

pytestmark = pytest.mark.slow
CALIBRATION = calibrate_scores([0.3, 0.4, 0.5, 0.6], [0.5] * 4, [0.9, 0.95], fpr=0.4)
EXTRAS = ("onnxscript", "onnxruntime", "openvino")
PX = 56
"""The input of the small encoder."""


def fit_on(
    domain: Domain, settings: Settings, abnormal: bool = True, masks: bool = False
) -> Detector:
    valid = domain.root / "valid"
    diseased = valid / "Ungood" / "img" if abnormal else None
    drawn = valid / "Ungood" / "anomaly_mask" if masks else None
    return recap.fit(valid / "good" / "img", diseased, drawn, settings=settings)


def detector_of(kind: str, phantoms: list[Domain], settings: Callable[..., Settings]) -> Detector:
    """Two kinds of conditioning come with other kinds; the rest are gated."""
    if kind == "zero-shot, tokens":
        model = {"conditioning": "tokens", "zero_shot_score": "class_tokens"}
        return fit_sources(phantoms[:1], settings(model=model))
    if kind in ("masks", "labels"):
        detector = fit_on(phantoms[0], settings("recap"), masks=kind == "masks")
        assert len(detector.model.branches) == (1 if kind == "masks" else 2)
        return detector.calibrated(CALIBRATION) if kind == "labels" else detector
    if kind in ("nearest", "normal-only"):
        preset = "fast" if kind == "nearest" else "recap"
        detector = fit_on(phantoms[0], settings(preset), abnormal=False)
        assert bool(detector.model.maps.adapters) == (kind == "normal-only")
        return detector
    assert kind == "write-back, static"
    return fit_on(phantoms[0], settings("paper", model={"conditioning": "static"}))


def operations(program: Any) -> set[str]:
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


class Exported(NamedTuple):
    """A detector, its bundle with a graph, and what that graph consists of."""

    detector: Detector
    bundle: Path
    record: ExportRecord
    operations: set[str]


# OpenVINO's graph is made from that of ONNX: one kind is enough, and `exported` has both.
TARGETS: dict[str, Target] = {"zero-shot, tokens": "openvino", "labels": "onnx"}


def export_and_keep(detector: Detector, bundle: Path, target: Target) -> Exported:
    """Export, and keep what was traced on the way: tracing again would take its time."""
    found: set[str] = set()

    def watched(*given: Any) -> Any:
        program = trace(*given)
        found.update(operations(program))
        return program

    detector.save(bundle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "trace", watched)
        record = export.export_bundle(detector, bundle, target)
    return Exported(detector, bundle, record, found)


@pytest.fixture(scope="module")
def exported_kinds(
    phantoms: list[Domain],
    small_settings: Callable[..., Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Exported]:
    for package in EXTRAS:
        pytest.importorskip(package, reason="the extras onnx and openvino are not installed")
    root = tmp_path_factory.mktemp("kinds")
    # One of them has a comma in its name, which OpenVINO's converter would take for two paths.
    return {
        kind: export_and_keep(detector_of(kind, phantoms, small_settings), root / kind, target)
        for kind, target in TARGETS.items()
    }


@pytest.mark.parametrize("kind", TARGETS)
def test_every_kind_is_exported(
    kind: str, exported_kinds: dict[str, Exported], pictures: list[np.ndarray]
) -> None:
    detector, bundle, record, _ = exported_kinds[kind]
    assert max(record.largest_difference.values()) <= 1e-4
    if kind == "labels":
        assert record.calibration == CALIBRATION.digest
        assert "probability" in record.outputs
        assert "in_domain" in record.outputs  # the support images say what the domain is
    graph = recap.load(bundle, runtime=TARGETS[kind])
    for picture in pictures:
        expected, seen = detector.score(picture), graph.score(picture)
        assert seen.score == pytest.approx(expected.score, abs=1e-4)
        assert np.abs(seen.map - expected.map).max() < 1e-4
        for branch in ("score_prototype", "score_memory", "drift"):
            missing = getattr(expected, branch) is None
            assert (getattr(seen, branch) is None) == missing


# Most of an export's time is that of writing ONNX, which depends on a graph's operations alone.
@pytest.mark.parametrize("kind", ["masks", "write-back, static", "nearest", "normal-only"])
def test_other_kinds_are_graphs_of_the_same_operations(
    kind: str,
    phantoms: list[Domain],
    small_settings: Callable[..., Settings],
    exported_kinds: dict[str, Exported],
) -> None:
    model = detector_of(kind, phantoms, small_settings).model
    program = trace(model)
    written = set().union(*(exported.operations for exported in exported_kinds.values()))
    assert operations(program) <= written
    for count in (1, 3):
        pixels = torch.rand(count, 3, PX, PX, generator=torch.Generator().manual_seed(count))
        found, expected = program.module()(pixels), Graph(model)(pixels)
        assert len(found) == len(expected) == len(output_names(model))
        for one, other in zip(found, expected, strict=True):
            assert torch.allclose(one, other, atol=1e-5)


def test_int8_measures_what_it_changes(
    exported: Path,
    phantoms: list[Domain],
    tmp_path: Path,
    pictures: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import shutil

    pytest.importorskip("nncf", reason="the extra openvino is not installed")
    bundle = shutil.copytree(exported, tmp_path / "int8.recap")
    images = phantoms[0].root / "valid"
    batches, run = [], TorchRuntime.run

    def counted(self: TorchRuntime, pixels: FloatArray) -> Arrays:
        batches.append(len(pixels))
        return run(self, pixels)

    monkeypatch.setattr(TorchRuntime, "run", counted)
    record = export.export_bundle(recap.load(bundle), bundle, "openvino", calibration=images)
    # The built-in images, then those of the folder one by one: 128 at once fill the memory.
    assert batches == [record.checked_on, *[1] * record.int8["calibration"]["images"]]
    assert record.runtime == "openvino-int8"
    assert exports(Bundle(bundle))["openvino-int8"] == record
    assert record.int8 is not None
    assert record.int8["calibration"]["images"] >= 4
    change = record.int8["built_in"]["largest_change_of_score"]
    assert 0 < change == record.largest_difference["score"] < 0.2
    assert record.int8["built_in"]["mean_change_of_score"] <= change
    detector = recap.load(bundle, runtime="openvino-int8")
    assert detector.runtime.describe()["graph"] == record.digest
    other = record.model_copy(update={"files": {**record.files, "model.bin": "0"}})
    assert other.digest != record.digest
    assert "graph" not in recap.load(bundle, runtime="openvino").runtime.describe()
    expected = recap.load(bundle)
    for picture in pictures:
        assert abs(detector.score(picture).score - expected.score(picture).score) < 0.2
    assert recap.load(bundle, runtime="auto").runtime.name != "openvino-int8"


def test_too_few_calibration_images_are_told(saved: Path, phantoms: list[Domain]) -> None:
    folder = phantoms[1].root / "test" / "good"
    with pytest.raises(InputError, match="has 2 images; int8 needs 4"):
        export.export_bundle(recap.load(saved), saved, "openvino", calibration=folder)
