import json
import shutil

import numpy as np
import pytest
from PIL import Image as PillowImage

import recap
from recap.cli.calibrate import _summary
from recap.scoring.calibration import calibrate_scores
from scored_folders import read_table


@pytest.fixture
def own_bundle(bundle, tmp_path):
    """A copy that a test may change."""
    shutil.copytree(bundle, tmp_path / "brain.recap")
    return tmp_path / "brain.recap"


@pytest.fixture
def folders(domains, tmp_path):
    """22 variants of normal test images and 6 of abnormal ones."""
    for label, source, count in (("normal", "good", 22), ("abnormal", "Ungood", 6)):
        (tmp_path / label).mkdir()
        files = sorted((domains[0].root / "test" / source / "img").iterdir())
        for number in range(count):
            with PillowImage.open(files[number % len(files)]) as image:
                values = np.asarray(image).astype(float)
            noise = np.random.default_rng(number).normal(0, 4, values.shape)
            noisy = np.clip(values + noise, 0, 255).astype(np.uint8)
            PillowImage.fromarray(noisy).save(tmp_path / label / f"{number}.png")
    return tmp_path


def test_normal_images_alone(command, own_bundle, folders):
    result = command("calibrate", own_bundle, "--normal", folders / "normal")
    assert result.code == 0
    assert "Normal: 22   abnormal: 0   kind: image" in result.out
    assert "at most 5 % of normal images score so high (22 held out, conformal)" in result.out
    assert "At most 5 % of new normal images are called abnormal" in result.out
    assert f"Saved: {own_bundle}" in result.out
    calibration = recap.load(own_bundle).card.calibration
    assert calibration.source == "held-out"
    assert f"{calibration.threshold:.4g}" in result.out
    assert [path.name for path in folders.iterdir() if "recap" in path.name] == ["brain.recap"]


def test_labelled_images_into_another_bundle(command, own_bundle, folders):
    before = (own_bundle / "bundle.json").read_bytes()
    result = command(
        *("calibrate", own_bundle, "--normal", folders / "normal", "--out", folders / "new.recap"),
        *("--abnormal", folders / "abnormal", "--fpr", "0.1", "--sensitivity", "0.8"),
        *("--decide-by", "sensitivity"),
    )
    assert result.code == 0
    for name in ("fpr ", "f1 ", "youden ", "sensitivity* "):
        assert any(line.startswith(name) for line in result.out.splitlines())
    assert (own_bundle / "bundle.json").read_bytes() == before
    calibration = recap.load(folders / "new.recap").card.calibration
    assert (calibration.fpr, calibration.decided_by) == (0.1, "sensitivity")
    assert calibration.probability is not None
    assert calibration.probability[0] > 0  # higher scores are more likely abnormal


def test_intervals_of_few_patients_are_said_to_be_too_narrow():
    normal, abnormal = [i / 60 for i in range(60)], [0.5 + i / 30 for i in range(30)]
    told = "are those of independent images; the 60 normal ones show 7 patients only"
    for patients, said in ((7, True), (60, False), (None, False)):
        found = calibrate_scores(normal, normal, abnormal, patients=patients)
        assert (told in " ".join(_summary(found, None))) is said
    assert told not in " ".join(_summary(calibrate_scores(normal, normal, patients=7), None))


def test_scores_then_come_with_decisions_and_regions(command, own_bundle, folders):
    command("calibrate", own_bundle, "--normal", folders / "normal")
    out = folders / "out"
    assert command("score", own_bundle, folders / "abnormal", "--out", out).code == 0
    detector = recap.load(own_bundle)
    for row in read_table(out / "scores.csv"):
        decision = detector.score(folders / "abnormal" / row["case"]).decision
        assert float(row["p_value"]) == pytest.approx(decision.p_value, rel=1e-7)
        assert row["decision"] in ("normal", "abnormal", "out-of-domain")
        assert row["in_domain"] == ("yes" if decision.in_domain else "no")
        assert row["rule"] == decision.rule
        assert len(read_table(out / row["regions_table"])) == int(row["regions"])
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["decisions"]["rule"] == detector.card.calibration.rule
    assert manifest["decisions"]["threshold"] == detector.card.calibration.threshold


def test_files_are_then_read_as_for_the_calibration(command, own_bundle, folders):
    given = ["--window", "lung", "--axis", "coronal", "--runtime", "torch"]
    assert command("calibrate", own_bundle, "--normal", folders / "normal", *given).code == 0
    calibration = recap.load(own_bundle).card.calibration
    assert (calibration.reading.window, calibration.reading.axis) == ("lung", "coronal")
    score = ["score", own_bundle, folders / "abnormal", "--out"]
    assert command(*score, folders / "out").code == 0
    manifest = json.loads((folders / "out" / "manifest.json").read_text())
    assert manifest["reading"]["window"] == "lung"
    assert command(*score, folders / "other", "--window", "file").code == 0
    for name, decided in (("out", True), ("other", False)):
        rows = read_table(folders / name / "scores.csv")
        assert [bool(row["p_value"]) for row in rows] == [decided] * 6
    assert "window file, not lung" in rows[0]["rule"]


def test_a_graph_gives_the_scores_of_the_calibration(command, own_bundle, folders, monkeypatch):
    chosen = []
    choose = "recap.runtime.choose.choose_runtime"
    monkeypatch.setattr(choose, lambda detector, name, bundle, *_: chosen.append((name, bundle)))
    options = ["calibrate", own_bundle, "--normal", folders / "normal", "--runtime", "onnx"]
    assert command(*options).code == 0
    assert chosen == [("onnx", own_bundle)]


def test_results_of_another_calibration_are_kept_apart(command, own_bundle, folders):
    out = folders / "out"
    score = ["score", own_bundle, folders / "abnormal", "--out", out]
    assert command(*score).code == 0
    command("calibrate", own_bundle, "--normal", folders / "normal")
    result = command(*score)
    assert result.code == 2
    assert "another calibration" in result.err


def test_too_few_images_are_one_line(command, own_bundle, folders):
    before = (own_bundle / "bundle.json").read_bytes()
    result = command("calibrate", own_bundle, "--normal", folders / "normal", "--fpr", "0.01")
    assert result.code == 2
    assert "With 22 normal images the false-positive rate is 4.4 % at best" in result.err
    assert "Give 99 or more, or a larger --fpr" in result.err
    assert (own_bundle / "bundle.json").read_bytes() == before


def test_a_file_that_cannot_be_read_is_exit_code_1(command, own_bundle, folders):
    (folders / "normal" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    result = command("calibrate", own_bundle, "--normal", folders / "normal")
    assert result.code == 1
    assert "bad.png" in result.err
    assert len(recap.load(own_bundle).card.calibration.normal_scores) == 22


def test_support_images_are_refused(command, own_bundle, domains):
    result = command("calibrate", own_bundle, "--normal", domains[0].root / "valid" / "good")
    assert result.code == 2
    assert "fitted on" in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--decide-by", "f1"], "Deciding by 'f1' needs abnormal images"),
        (["--sensitivity", "0.9"], "--sensitivity 0.9 needs abnormal images"),
        (["--abnormal", "abnormal", "--sensitivity", "95"], "must lie between 0 and 1, not 95.0"),
        (["--fpr", "5"], "5"),
        (["--window", "liver"], "liver"),
        (["--axis", "up"], "up"),
        (["--runtime", "cuda"], "No runtime is called 'cuda'"),
        (["--out", "normal"], "normal exists and is no detector. Choose another --out"),
        (["--out", "normal/0.png"], "0.png exists and is no detector"),
        (["--out", "normal/0.png/new"], "0.png is a file, but a folder is needed"),
        (["--out", "other.recap"], "other.recap exists already. Pass --overwrite"),
    ],
)
def test_mistakes_are_told_before_the_first_image_is_scored(
    command, own_bundle, folders, monkeypatch, options, message
):
    shutil.copytree(own_bundle, folders / "other.recap")
    monkeypatch.chdir(folders)
    monkeypatch.setattr("recap.scoring.calibrate.predict", lambda *a, **k: pytest.fail("scored"))
    result = command("calibrate", own_bundle, "--normal", "normal", *options)
    assert result.code == 2
    assert message in result.err


def test_another_detector_is_replaced_only_when_asked(command, own_bundle, folders):
    shutil.copytree(own_bundle, folders / "other.recap")
    options = ["calibrate", own_bundle, "--normal", folders / "normal", "--out"]
    assert command(*options, folders / "other.recap", "--overwrite").code == 0
    assert recap.load(folders / "other.recap").card.calibration.source == "held-out"
    assert recap.load(own_bundle).card.calibration.source == "leave-one-out"
    assert command(*options, own_bundle).code == 0  # in place, by its name
    assert recap.load(own_bundle).card.calibration.source == "held-out"


def test_files_that_are_not_named_are_counted(command, own_bundle, folders):
    for number in range(8):
        bad = folders / "normal" / f"bad{number}.png"
        bad.write_bytes(b"\x89PNG\r\n\x1a\n nothing" + bytes([number]))
    result = command("calibrate", own_bundle, "--normal", folders / "normal")
    assert result.code == 1
    assert result.err.count("  left out: ") == 6
    assert "  left out: 3 more\n" in result.err


def test_a_link_in_the_bundle_is_told_before_the_work(command, own_bundle, folders, tmp_path):
    (own_bundle / "notes.txt").symlink_to("/etc/passwd")
    out = ["--out", tmp_path / "calibrated"]
    result = command("calibrate", own_bundle, "--normal", folders / "normal", *out)
    assert result.code == 2
    assert "notes.txt is a link" in result.err
    assert not (tmp_path / "calibrated").exists()
