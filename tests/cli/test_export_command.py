"""`recap export`, without the tracing, which tests/runtime covers."""

from recap.runtime.record import ExportRecord


def record(kind, int8=None):
    return ExportRecord(
        runtime=kind,
        versions={},
        source="",
        input_px=70,
        outputs=["score", "map"],
        files={},
        checked_on=9,
        largest_difference={"score": 2e-7, "map": 3e-6},
        int8=int8,
    )


def test_it_says_what_was_measured(command, bundle, monkeypatch):
    asked = []

    def stub(detector, path, to, calibration, progress):
        asked.append((detector.card.mode, path, to, calibration))
        progress("export", 0, 0, "Tracing")
        return record(to)

    monkeypatch.setattr("recap.api.export_bundle", stub)
    result = command("export", bundle, "--to", "onnx")
    assert result.code == 0, result.err
    assert asked == [("normal-only", bundle, "onnx", None)]
    assert "on 9 images, the score differs by 2.0e-07 at most, the map by 3.0e-06" in result.out
    assert f"recap score {bundle} --runtime onnx" in result.out.replace("\n", " ")
    assert "Tracing" in result.err


def test_int8_tells_its_change(command, bundle, monkeypatch, tmp_path):
    change = {
        "images": 24,
        "mean_change_of_score": 0.004,
        "largest_change_of_score": 0.01,
        "spread_of_scores": 0.02,
    }
    made = record("openvino-int8", {"built_in": change, "calibration": change})
    monkeypatch.setattr("recap.api.export_bundle", lambda *_: made)
    result = command("export", bundle, "--to", "openvino", "--int8", "--calibration", tmp_path)
    assert "24 calibration images by 4.0e-03 on average, 1.0e-02 at most" in result.out


def test_int8_and_calibration_belong_together(command, bundle, tmp_path):
    for options in (["--int8"], ["--calibration", tmp_path]):
        result = command("export", bundle, "--to", "openvino", *options)
        assert result.code == 2
        assert "belong together" in result.err


def test_what_is_no_bundle_is_told(command, tmp_path):
    result = command("export", tmp_path, "--to", "onnx")
    assert result.code == 2
    assert "not a recap bundle" in result.err
