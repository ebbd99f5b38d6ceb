"""The decisions of a graph are those of the detector's calibration."""

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import recap
from recap.cli.main import app
from recap.runtime import export
from recap.runtime.engines import open_graph
from recap.runtime.export import export_bundle
from recap.runtime.graph import Decisions, decisions_of
from recap.runtime.record import check_pixels, decision_differences, exports
from recap.scoring.bundle_folder import Bundle
from recap.scoring.calibration import calibrate_scores
from recap.scoring.domain_guard import domain_range

unit = st.floats(0, 1, width=32)


@given(st.lists(unit, min_size=3, max_size=30), st.lists(unit, max_size=8), st.data())
def test_every_score_is_decided_upon_alike(normal, abnormal, data):
    calibration = calibrate_scores(normal, normal, abnormal, fpr=0.3)
    beside = [np.nextafter(np.float32(s), np.float32(side)) for s in normal[:3] for side in (0, 1)]
    scores = np.array([*normal, *beside, *data.draw(st.lists(unit, max_size=9))], np.float32)
    seen = Decisions(calibration)(torch.from_numpy(scores), None)
    for index, score in enumerate(scores.tolist()):
        expected = calibration.decide(score)
        assert seen["p_value"][index].item() == np.float32(expected.p_value)
        assert bool(seen["abnormal"][index]) == expected.abnormal
        curve = calibration.probability
        assert ("probability" in seen) == (curve is not None)
        if curve is not None and curve[0] < 100:  # float32 cannot follow a steeper one
            probability = seen["probability"][index].item()
            assert probability == pytest.approx(expected.probability, abs=1e-4)


def test_scores_that_no_float32_is_are_rounded_to_the_safe_side():
    calibration = calibrate_scores([0.1, 0.2, 0.3], [0.5] * 3, fpr=0.3)
    scores = np.float32([0.1, 0.2, 0.3])
    around = np.concatenate([np.nextafter(scores, np.float32(0)), scores])
    seen = Decisions(calibration)(torch.from_numpy(around), None)
    expected = [calibration.decide(score) for score in around.tolist()]
    assert seen["p_value"].tolist() == [decision.p_value for decision in expected]
    assert seen["abnormal"].tolist() == [decision.abnormal for decision in expected]


def test_images_unlike_the_rest_are_told():
    rows = np.eye(4, dtype=np.float32)[:3] + 3
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    domain, known = domain_range(list(rows[:, None]))
    calibration = calibrate_scores([0.1, 0.2, 0.3], [0.5] * 3, fpr=0.3)
    far = np.float32([0, 0, 0, 1])
    asked = torch.from_numpy(np.stack([rows[0], far]))
    seen = Decisions(calibration, domain, known)(torch.tensor([0.2, 0.2]), asked)
    assert seen["in_domain"].tolist() == [1.0, 0.0]
    assert "in_domain" not in Decisions(calibration, domain, known)(torch.tensor([0.2]), None)


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_a_graph_decides_as_the_detector_does(name, exported, pictures):
    detector = recap.load(exported)
    assert exports(Bundle(exported))[name].calibration == detector.card.calibration.digest
    graph = open_graph(Bundle(exported), name, exports(Bundle(exported))[name])
    for picture in pictures:
        pixels = detector.preprocess(recap.io.image_from_array(picture)).numpy()
        seen = graph.run_one(pixels)
        domain = detector.check_domain(seen["descriptor"])
        expected = detector.decide(float(seen["score"][0]), domain)
        assert seen["p_value"][0] == np.float32(expected.p_value)
        assert bool(seen["abnormal"][0]) == expected.abnormal
        assert bool(seen["in_domain"][0]) == expected.in_domain


def test_a_wrong_decision_is_found(exported):
    detector = recap.load(exported)
    graph = open_graph(Bundle(exported), "onnx", exports(Bundle(exported))["onnx"])
    found = [graph.run_one(image) for image in check_pixels(detector)[:2]]
    decisions = decisions_of(detector)
    assert max(decision_differences(decisions, found).values()) < 1e-6
    found[1]["p_value"] = found[1]["p_value"] / 2
    assert decision_differences(decisions, found)["p_value"] > 0.1


def test_another_calibration_makes_another_graph(exported, tmp_path, monkeypatch):
    """The ONNX graph of an earlier calibration is not what OpenVINO's is made from."""
    bundle = shutil.copytree(exported, tmp_path / "copy.recap")
    calibration = calibrate_scores([0.3, 0.4, 0.5, 0.6], [0.5] * 4, [0.9, 0.95], fpr=0.4)
    traced = []

    def trace(model, decisions):
        traced.append(decisions.digest)
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "trace", trace)
    with pytest.raises(KeyboardInterrupt):
        export_bundle(recap.load(bundle).calibrated(calibration), bundle, "openvino")
    assert traced == [calibration.digest]
    assert exports(Bundle(bundle)) == exports(Bundle(exported))


def test_a_detector_without_calibration_decides_nothing(exported):
    detector = recap.load(exported)
    detector.card = detector.card.model_copy(update={"calibration": None})
    assert decisions_of(detector) is None


def test_calibrating_says_which_graphs_decide_as_before(exported, phantoms, tmp_path):
    bundle = shutil.copytree(exported, tmp_path / "copy.recap")
    normal = phantoms[0].root / "test" / "good" / "img"
    arguments = ["calibrate", bundle, "--normal", normal, "--fpr", "0.4"]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    for name in ("onnx", "openvino"):
        assert f"{bundle / name} still decides by its earlier calibration" in done.stderr
        assert f"recap export {bundle} --to {name}" in done.stderr
