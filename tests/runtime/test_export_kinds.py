"""Every kind of detector becomes a graph, and int8 says what it changes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import recap
from recap.config import Settings
from recap.data.benchmark import Domain
from recap.errors import InputError
from recap.runtime.export import export_bundle
from recap.runtime.record import Target, exports
from recap.scoring.calibration import calibrate_scores
from recap.scoring.detector import Detector
from recap.training.zeroshot import fit_zero_shot

pytestmark = pytest.mark.slow
CALIBRATION = calibrate_scores([0.3, 0.4, 0.5, 0.6], [0.5] * 4, [0.9, 0.95], fpr=0.4)
EXTRAS = ("onnxscript", "onnxruntime", "openvino")


def fit_on(
    domain: Domain, settings: Settings, abnormal: bool = True, masks: bool = False
) -> Detector:
    valid = domain.root / "valid"
    diseased = valid / "Ungood" / "img" if abnormal else None
    drawn = valid / "Ungood" / "anomaly_mask" if masks else None
    return recap.fit(valid / "good" / "img", diseased, drawn, settings=settings)


# An export takes long: two kinds of conditioning come with other kinds, the rest are gated; and
# OpenVINO's graph is made from that of ONNX, so that both are looked at for the defaults alone.
@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        ("write-back, static", ["onnx"]),
        ("zero-shot, tokens", ["openvino"]),
        ("nearest", ["onnx"]),
        ("normal-only", ["openvino"]),
        ("masks", ["onnx", "openvino"]),
        ("labels", ["openvino"]),
    ],
)
def test_every_kind_is_exported(
    kind: str,
    targets: list[Target],
    phantoms: list[Domain],
    small_settings: Callable[..., Settings],
    tmp_path: Path,
    pictures: list[np.ndarray],
) -> None:
    for package in EXTRAS:
        pytest.importorskip(package, reason="the extras onnx and openvino are not installed")
    if kind == "zero-shot, tokens":
        model = {"conditioning": "tokens", "zero_shot_score": "class_tokens"}
        settings = small_settings(model=model)
        detector = fit_zero_shot(phantoms[:1], settings)
    elif kind in ("masks", "labels"):
        detector = fit_on(phantoms[0], small_settings("recap"), masks=kind == "masks")
        assert detector.model.branches == (1 if kind == "masks" else 2)
        if kind == "labels":
            detector = detector.calibrated(CALIBRATION)
    elif kind in ("nearest", "normal-only"):
        preset = "fast" if kind == "nearest" else "recap"
        detector = fit_on(phantoms[0], small_settings(preset), abnormal=False)
        assert detector.model.has_adapters == (kind == "normal-only")
    else:
        settings = small_settings("paper", model={"conditioning": "static"})
        detector = fit_on(phantoms[0], settings)
    bundle = tmp_path / "kind.recap"
    detector.save(bundle)
    for target in targets:
        record = export_bundle(detector, bundle, target)
        assert max(record.largest_difference.values()) <= 1e-4
        if kind == "labels":
            assert record.calibration == CALIBRATION.digest
            assert "probability" in record.outputs
            assert "in_domain" not in record.outputs  # nothing was said about the domain
        graph = recap.load(bundle, runtime=target)
        for picture in pictures:
            expected, seen = detector.score(picture), graph.score(picture)
            assert seen.score == pytest.approx(expected.score, abs=1e-4)
            assert np.abs(seen.map - expected.map).max() < 1e-4
            for branch in ("score_prototype", "score_memory", "drift"):
                missing = getattr(expected, branch) is None
                assert (getattr(seen, branch) is None) == missing


def test_int8_measures_what_it_changes(
    exported: Path, phantoms: list[Domain], tmp_path: Path, pictures: list[np.ndarray]
) -> None:
    import shutil

    pytest.importorskip("nncf", reason="the extra openvino is not installed")
    bundle = shutil.copytree(exported, tmp_path / "int8.recap")
    images = phantoms[0].root / "valid"
    record = export_bundle(recap.load(bundle), bundle, "openvino", calibration=images)
    assert record.runtime == "openvino-int8"
    assert exports(bundle)["openvino-int8"] == record
    assert record.int8 is not None
    assert record.int8["calibration"]["images"] >= 4
    change = record.int8["built_in"]["largest_change_of_score"]
    assert 0 < change == record.largest_difference["score"] < 0.2
    assert record.int8["built_in"]["mean_change_of_score"] <= change
    detector = recap.load(bundle, runtime="openvino-int8")
    expected = recap.load(bundle)
    for picture in pictures:
        assert abs(detector.score(picture).score - expected.score(picture).score) < 0.2
    assert recap.load(bundle, runtime="auto").runtime.name != "openvino-int8"


def test_too_few_calibration_images_are_told(saved: Path, phantoms: list[Domain]) -> None:
    folder = phantoms[1].root / "test" / "good"
    with pytest.raises(InputError, match="has 2 images; int8 needs 4"):
        export_bundle(recap.load(saved), saved, "openvino", calibration=folder)
