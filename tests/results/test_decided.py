"""Decisions and regions as they stand in the results of a run."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage

import recap
from folder_runs import score_case, score_to_folder
from recap.config import ReadingSettings
from recap.data.cases import find_cases
from recap.errors import InputError
from recap.io.case import Case, LazyImages
from recap.scoring.regions import find_regions
from recap.scoring.whole import Parts
from recap.types import Image


def picture(seed, lesion=False):
    values = np.random.default_rng(seed).integers(60, 120, (48, 64), np.uint8)
    if lesion:
        values[10:30, 20:40] = 255
    return values


@pytest.fixture(scope="module")
def estimated(tiny_settings):
    """Calibrated by leaving its four normal images out."""
    return recap.fit([picture(seed) for seed in range(4)], settings=tiny_settings())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for name, lesion in (("a", False), ("b", True)):
        PillowImage.fromarray(picture(9, lesion)).save(tmp_path / "images" / f"{name}.png")
    return tmp_path / "images"


def run(detector, folder, out, **options):
    def draw(case, prediction, path):
        path.write_bytes(b"")

    cases = find_cases([folder], Path("no archives")).cases
    return {row.case: row for row in score_to_folder(detector, cases, out, draw, **options)}


def test_rows_have_the_decision_and_the_regions(estimated, folder, tmp_path):
    rows = run(estimated, folder, tmp_path / "out")
    level = estimated.card.calibration.map_level
    for name in ("a.png", "b.png"):
        row, prediction = rows[name], estimated.score(folder / name)
        assert float(row.p_value) == pytest.approx(prediction.decision.p_value, rel=1e-7)
        assert row.rule == prediction.decision.rule
        found = find_regions(prediction.map, level)
        assert row.regions == str(len(found))
        with (tmp_path / "out" / row.regions_table).open(newline="") as file:
            table = list(csv.DictReader(file))
        assert [int(line["area_px"]) for line in table] == [region.area_px for region in found]
    assert int(rows["b.png"].regions) > 0
    decided = json.loads((tmp_path / "out" / "manifest.json").read_text())["decisions"]
    assert decided["source"] == "leave-one-out"
    assert "nothing is promised" in decided["guarantee"]


def test_what_masks_ignore_is_in_no_region_and_changes_nothing_else(estimated, folder, tmp_path):
    (tmp_path / "ignore").mkdir()
    PillowImage.fromarray(np.ones((48, 64), bool)).save(tmp_path / "ignore" / "b.png")
    before = run(estimated, folder, tmp_path / "one")
    after = run(estimated, folder, tmp_path / "two", ignore=tmp_path / "ignore")
    assert after["b.png"].regions == "0"
    assert after["a.png"].regions == before["a.png"].regions
    for name in before:
        assert after[name].score == before[name].score
        assert after[name].decision == before[name].decision
    with pytest.raises(InputError, match="only one of the two runs has ignore masks"):
        run(estimated, folder, tmp_path / "one", ignore=tmp_path / "ignore")


def test_a_case_is_scored_again_when_its_ignore_mask_changes(
    estimated, folder, tmp_path, monkeypatch
):
    masks, out = tmp_path / "ignore", tmp_path / "out"
    masks.mkdir()
    for name in ("a", "b"):
        PillowImage.fromarray(np.ones((48, 64), bool)).save(masks / f"{name}.png")
    assert run(estimated, folder, out, ignore=masks)["b.png"].regions == "0"
    finished = {path: path.stat().st_mtime_ns for path in (out / "maps").iterdir()}
    monkeypatch.chdir(tmp_path)  # the same folder under another name is the same
    run(estimated, folder, out, ignore=Path("ignore"))
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    PillowImage.fromarray(np.zeros((48, 64), bool)).save(masks / "b.png")
    rows = run(estimated, folder, out, ignore=masks)
    assert rows["b.png"].regions == run(estimated, folder, tmp_path / "new")["b.png"].regions != "0"
    again = {path.name for path in finished if path.stat().st_mtime_ns != finished[path]}
    assert again == {"b.png.npy"}
    (masks / "b.png").unlink()
    assert run(estimated, folder, out, ignore=masks)["b.png"].ignore_sha256 == ""


def test_a_mask_of_another_size_is_a_row_with_its_reason(estimated, folder, tmp_path):
    (tmp_path / "ignore").mkdir()
    PillowImage.fromarray(np.ones((4, 6), bool)).save(tmp_path / "ignore" / "b.png")
    rows = run(estimated, folder, tmp_path / "out", ignore=tmp_path / "ignore")
    assert (rows["a.png"].status, rows["b.png"].status) == ("ok", "error")
    assert "6×4 pixels" in rows["b.png"].error


def test_without_a_calibration_the_row_says_so(detectors, folder, tmp_path):
    rows = run(detectors["zero-shot"], folder, tmp_path / "out")
    row = rows["a.png"]
    assert (row.p_value, row.decision, row.regions, row.in_domain) == ("", "", "", "")
    assert row.rule == "no decision: not calibrated; run recap calibrate"
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["decisions"] is None


def test_files_read_in_another_way_are_not_decided_upon(estimated, folder, tmp_path):
    rows = run(estimated, folder, tmp_path / "out", reading=ReadingSettings(window="brain"))
    assert rows["a.png"].decision == ""
    assert "read with other settings" in rows["a.png"].rule
    assert rows["a.png"].regions != ""


def test_a_detector_reads_files_as_when_it_was_calibrated(estimated, folder, monkeypatch):
    """A window that the calibration was made with, in Python and in the table alike."""
    lung = ReadingSettings(window="lung")
    known = [picture(seed) for seed in range(20, 40)]
    detector = recap.calibrate(estimated, known, reading=lung).detector
    assert detector.card.reading == detector.card.calibration.reading == lung
    seen = []
    monkeypatch.setattr(
        "recap.scoring.detector.read_image",
        lambda path, reading: seen.append(reading) or Image(picture(50) / np.float32(255), path),
    )
    assert detector.score(folder / "a.png").decision is not None
    assert detector.score_case(folder / "a.png").decision is not None
    assert seen == [lung]
    assert detector.undecided() == ""
    assert "window file, not lung" in detector.undecided(reading=ReadingSettings())
    again = recap.calibrate(detector, known).calibration
    assert again.reading == lung


@pytest.fixture
def clip():
    def frame(number):
        return Image(picture(number).astype(np.float32) / 255, f"frame {number}")

    return Case("frames", "clip", LazyImages(3, frame))


def test_cases_of_another_kind_are_not_decided_upon(estimated, clip):
    prediction = score_case(estimated, clip)
    assert prediction.decision is None
    assert "calibrated on images, this is one of clips" in estimated.undecided("frames")
    each = [estimated.score(image) for image in clip.images]
    assert prediction.descriptors == pytest.approx(np.stack([p.descriptor for p in each]), abs=1e-6)
    middle = sorted(p.domain.distance for p in each)[1]
    assert prediction.domain.distance == pytest.approx(middle, abs=1e-6)


def test_descriptors_survive_an_interruption(estimated, clip, tmp_path):
    first = score_case(estimated, clip, parts=lambda source: Parts(tmp_path / "p"))
    again = score_case(estimated, clip, parts=lambda source: Parts(tmp_path / "p"))
    assert np.array_equal(again.descriptors, first.descriptors)
