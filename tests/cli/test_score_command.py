import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image as PillowImage

import recap
from recap.cli.score import _decisions, _dicom_results
from recap.results.table import Row
from recap.score_request import FolderResult
from scored_folders import read_table


def rows(out):
    return read_table(out / "scores.csv")


def test_score_a_folder(command, bundle, domains, tmp_path):
    out = tmp_path / "out"
    images = domains[0].root / "test" / "Ungood" / "img"
    result = command("score", bundle, images, "--out", out)
    assert result.code == 0
    scored, decided = result.out.splitlines()
    assert scored == f"Scored 2 of 2 cases (2 images): {out}/scores.csv"
    assert decided.startswith("Decided: ")
    detector = recap.load(bundle)
    for row in rows(out):
        prediction = detector.score(images / row["case"])
        assert float(row["score"]) == pytest.approx(prediction.score, rel=1e-7)
        assert np.array_equal(np.load(out / row["map"]), prediction.map)
        with PillowImage.open(out / row["overlay"]) as overlay:
            assert overlay.format == "PNG"
    assert json.loads((out / "manifest.json").read_text())["status"] == "complete"


def test_a_corrupt_file_is_exit_code_1(command, bundle, domains, tmp_path):
    good = domains[0].test()[0].path
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"nothing")
    result = command("score", bundle, good, bad, "--out", tmp_path / "out")
    assert result.code == 1
    assert "Scored 1 of 2 cases (1 image)" in result.out
    assert "bad.png" in result.err
    assert [row["status"] for row in rows(tmp_path / "out")] == ["ok", "error"]


@pytest.mark.skipif(os.name != "posix", reason="needs a file name that Windows refuses")
def test_names_of_files_do_not_command_the_terminal(command, bundle, domains, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(domains[0].test()[0].path, folder)
    (folder / "bad\x1b[2J.png").write_bytes(b"nothing")
    (folder / "note\nScored 9 of 9 cases.txt").write_text("no image")
    result = command("score", bundle, folder, "--out", tmp_path / "out")
    assert result.code == 1
    assert "\x1b" not in result.err
    assert r"bad\x1b[2J.png: " in result.err
    assert r"Left alone: 1 other file (note\nScored 9 of 9 cases.txt)" in result.err


def test_running_again_changes_nothing(command, bundle, domains, tmp_path):
    score = ["score", bundle, domains[0].root / "test" / "good", "--out", tmp_path / "out"]
    command(*score)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "maps").rglob("*.npy")}
    assert command(*score).code == 0
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "maps").rglob("*.npy")} == before


@pytest.mark.parametrize("what", ["bundle", "images"])
def test_what_is_not_there_is_exit_code_2(what, command, bundle, domains, tmp_path):
    image, nowhere = domains[0].test()[0].path, tmp_path / "nowhere"
    given = (nowhere, image) if what == "bundle" else (bundle, nowhere)
    result = command("score", *given, "--out", tmp_path / "out")
    assert result.code == 2
    assert "nowhere" in result.err
    assert "Traceback" not in result.err


@pytest.mark.skipif(os.name != "posix", reason="needs a folder that cannot be made")
def test_a_place_that_cannot_be_written_is_exit_code_2(command, bundle, domains, tmp_path):
    (tmp_path / "file").write_text("in the way")
    image = domains[0].test()[0].path
    result = command("score", bundle, image, "--out", tmp_path / "file" / "out")
    assert result.code == 2
    assert result.err.splitlines()[-1].startswith("recap: error: ")
    assert "Traceback" not in result.err


def test_an_unknown_device(command, bundle, domains, tmp_path):
    image = domains[0].test()[0].path
    result = command("score", bundle, image, "--out", tmp_path / "o", "--device", "banana")
    assert result.code == 2
    assert "'banana'" in result.err


def test_what_was_left_alone_is_named(command, bundle, domains, tmp_path):
    folder = shutil.copytree(domains[0].root / "test" / "good" / "img", tmp_path / "in")
    for number in range(7):
        (folder / f"note{number}.txt").write_text("no image")
    result = command("score", bundle, folder, "--out", tmp_path / "out")
    assert result.code == 0
    assert "Left alone: 7 other files (note0.txt, note1.txt" in result.err
    assert "and 2 more" in result.err
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    expected = {str(folder / f"note{number}.txt"): "not an image" for number in range(7)}
    assert manifest["left_alone"] == expected


def test_errors_beyond_the_first_are_counted(command, bundle, domains, tmp_path):
    folder = shutil.copytree(domains[0].root / "test" / "good" / "img", tmp_path / "in")
    for number in range(7):
        (folder / f"bad{number}.png").write_bytes(b"nothing")
    result = command("score", bundle, folder, "--out", tmp_path / "out")
    assert result.code == 1
    assert result.err.count("not an image that can be read") == 5
    assert f"and 2 more: see {tmp_path}/out/scores.csv" in result.err


def test_a_detector_may_stand_after_a_path(command, bundle, domains, tmp_path):
    twin = shutil.copytree(bundle, tmp_path / "twin.recap")
    images = domains[0].root / "test" / "good"
    result = command("score", bundle, images, twin, "--out", tmp_path / "out")
    assert (result.code, result.out.count("Scored 2 of 2 cases")) == (0, 2)
    assert rows(tmp_path / "out" / "twin") == rows(tmp_path / "out" / "brain")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--jobs", 2], "--jobs 2: needs --engine ray"),
        (["--ray-address", "auto"], "--ray-address auto: needs --engine ray"),
        (["--random-weights"], "was not fitted on random weights"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    options, message, command, bundle, domains, tmp_path
):
    image = domains[0].test()[0].path
    result = command("score", bundle, image, "--out", tmp_path / "out", *options)
    assert result.code == 2
    assert message in result.err
    assert not (tmp_path / "out").exists()


def test_dicom_results_of_pictures(command, bundle, domains, tmp_path):
    pytest.importorskip("highdicom")
    image = domains[0].test()[0].path
    result = command("score", bundle, image, "--out", tmp_path / "out", "--dicom")
    assert result.code == 0
    assert "none of the cases is DICOM" in result.out
    assert not (tmp_path / "out" / "dicom").exists()


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ({"dicom": "dicom/a"}, "DICOM results of 1 case: "),
        ({"error": "no DICOM results: …"}, "could not be made"),
        ({}, "none of the cases is DICOM"),
    ],
)
def test_what_is_said_of_dicom_results(lacks, said, tmp_path):
    both = [Row("a", "a", "", "ok", **lacks), Row("b", "b", "", "error", error="not an image")]
    outcome = FolderResult(both, tmp_path, tmp_path / "scores.csv")
    assert said in _dicom_results(sum(bool(row.dicom) for row in both), outcome)


def test_decisions_are_counted():
    told = [("abnormal", "from 0.5"), ("normal", "from 0.5"), ("abnormal", "from 0.5"), ("", "no")]
    given = [Row("a", "a", "", "ok", decision=d, rule=r) for d, r in told]
    assert _decisions(given) == ["Decided: 2 abnormal, 1 normal", "1 without a decision: no"]
    assert _decisions(given[:3]) == ["Decided: 2 abnormal, 1 normal"]
    assert _decisions([]) == []
