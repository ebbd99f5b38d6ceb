import json
import sys
from dataclasses import replace
from html import escape

import numpy as np
import pytest
from PIL import Image as Pillow

import recap
from recap.cli.score import report_command
from recap.data.cases import Found
from recap.errors import InputError
from recap.report.page import write_score_page
from recap.results.table import Row
from recap.scoring.bundle import read_card
from recap.scoring.explain import explain
from scored_folders import Page, read_table, scores_by_case


@pytest.fixture
def images(domains):
    return domains[0].root / "test" / "Ungood" / "img"


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.*")}


@pytest.fixture
def reported(command, bundle, images, tmp_path):
    out = tmp_path / "out"
    result = command("score", bundle, images, "--out", out, "--report")
    assert result.code == 0, result.err
    assert f"Report: {out}/report.html" in result.out
    return out


def test_a_report_with_pictures_and_why(reported, bundle, images):
    text = (reported / "report.html").read_text()
    Page(text)
    detector = recap.load(bundle)
    for name in scores_by_case(reported):
        found = explain(detector, images / name)
        why = json.loads((reported / f"why/{name}.json").read_text())
        assert why["nearest"]["origin"]["name"] == found.nearest.origin.name
        assert why["map_value"] == found.map_value
        assert found.nearest.origin.name in text
        for kind in ("previews", "preview_maps"):
            with Pillow.open(reported / kind / f"{name}.png") as picture:
                assert picture.size == (70, 70)
    manifest = json.loads((reported / "manifest.json").read_text())
    assert {"hash", "open", "score", "write", "draw", "previews"} <= manifest["stages"].keys()
    assert manifest["runtime"]["runtime"] == "torch"
    assert "torch" in manifest["versions"]
    assert len(manifest["sha256"]["scores.csv"]) == 64


def test_a_report_can_come_later_and_again(command, bundle, images, tmp_path, capsys):
    out = tmp_path / "out"
    command("score", bundle, images, "--out", out)
    maps = times(out / "maps")
    assert not (out / "previews").exists()
    assert command("score", bundle, images, "--out", out, "--report").code == 0
    assert times(out / "maps") == maps
    page, previews = (out / "report.html").read_bytes(), times(out / "previews")
    command("score", bundle, images, "--out", out, "--report")
    assert times(out / "previews") == previews
    # The folder is all that the page needs.
    (out / "report.html").unlink()
    report_command(out)
    assert capsys.readouterr().out == f"{out}/report.html\n"
    assert len((out / "report.html").read_bytes()) == pytest.approx(len(page), rel=0.01)


def test_report_needs_a_scored_folder(tmp_path):
    with pytest.raises(InputError, match="holds no results"):
        report_command(tmp_path)


def test_a_volume_shows_its_highest_slice(command, bundle, tmp_path):
    nibabel = pytest.importorskip("nibabel")
    voxels = np.random.default_rng(0).random((24, 20, 5)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(voxels, np.diag([1.0, 1.0, 3.0, 1.0])), tmp_path / "v.nii.gz")
    out = tmp_path / "out"
    assert command("score", bundle, tmp_path / "v.nii.gz", "--out", out, "--report").code == 0
    scores = [float(line["score"]) for line in read_table(out / "images/v.nii.gz.csv")]
    why = json.loads((out / "why/v.nii.gz.json").read_text())
    assert (why["image"], why["images"]) == (int(np.argmax(scores)), 5)
    assert why["score"] == pytest.approx(max(scores), rel=1e-6)
    assert f"Slice {why['image'] + 1} of 5" in (out / "report.html").read_text()


def test_a_slide_is_shown_whole(command, bundle, tmp_path):
    pytest.importorskip("openslide")
    pytest.importorskip("tifffile")
    from slide_files import PINK, blank, write_slide

    pixels = blank(1100, 1900)
    pixels[520:1030, 600:1500] = PINK
    write_slide(tmp_path / "s.tiff", pixels)
    out = tmp_path / "out"
    result = command("score", bundle, tmp_path / "s.tiff", "--out", out, "--report")
    assert result.code == 0, result.err
    why = json.loads((out / "why/s.tiff.json").read_text())
    assert why["shown_hw"] == [1100, 1900]
    map = np.load(out / "maps/s.tiff.npy")
    step = float(scores_by_case(out)["s.tiff"]["map_step_px"])
    x, y = why["xy_px"]
    # The tile with the highest score need not have the highest value, but was looked at.
    assert np.isfinite(map[int(y / step), int(x / step)])
    for kind in ("previews", "preview_maps"):
        with Pillow.open(out / kind / "s.tiff.png") as picture:
            assert picture.size == (512, round(512 * 1100 / 1900))
    assert "The whole slide" in (out / "report.html").read_text()


def test_parquet_is_the_table_with_types(command, bundle, images, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    bad = tmp_path / "=bad.png"
    bad.write_bytes(b"nothing")
    out = tmp_path / "out"
    result = command("score", bundle, images, bad, "--out", out, "--parquet")
    assert result.code == 1  # the bad file
    read = parquet.read_table(out / "scores.parquet").to_pylist()
    rows = scores_by_case(out)
    assert [row["case"] for row in read] == list(rows)
    for row in read:
        text = rows[row["case"]]
        assert list(row) == list(text)
        assert row["status"] == text["status"]
        if row["status"] == "ok":
            assert row["score"] == float(text["score"])
            assert row["regions"] == int(text["regions"])
            assert row["in_domain"] in (True, False, None)
        else:
            assert row["score"] is row["regions"] is None
            assert "=bad.png" in row["error"]
    assert len(json.loads((out / "manifest.json").read_text())["sha256"]) == 2


def test_a_missing_package_is_told_before_the_work(command, bundle, images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = command("score", bundle, images, "--out", tmp_path / "out", "--parquet")
    assert result.code == 2
    assert "recap-ad[tables]" in result.err
    assert not (tmp_path / "out").exists()


def test_thumbnails_are_kept_only_if_asked_for(command, brain_folders, images, tiny, tmp_path):
    for name, options in (("without", []), ("with", ["--keep-thumbnails"])):
        result = command("fit", *brain_folders, "--out", tmp_path / name, *tiny, *options)
        assert result.code == 0, result.err
        assert ("images of patients" in result.out) == bool(options)
    assert not (tmp_path / "without" / "support").exists()
    assert read_card(tmp_path / "without").thumbnails == 0
    assert read_card(tmp_path / "with").thumbnails == 3
    files = sorted(path.name for path in (tmp_path / "with" / "support").iterdir())
    assert files == [f"{number:06d}.png" for number in range(3)]
    # Saved again, as `recap calibrate` does, they stay; saved elsewhere, they do not.
    detector = recap.load(tmp_path / "with")
    detector.save(tmp_path / "kept", keep=tmp_path / "with")
    detector.save(tmp_path / "alone")
    assert read_card(tmp_path / "kept").thumbnails == 3
    assert read_card(tmp_path / "alone").thumbnails == 0
    assert not (tmp_path / "alone" / "support").exists()
    out = tmp_path / "out"
    command("score", tmp_path / "with", images, "--out", out, "--report")
    assert "Support image" in (out / "report.html").read_text()


def test_a_report_takes_no_file_of_the_host(command, brain_folders, images, tiny, tmp_path):
    made = command("fit", *brain_folders, "--out", tmp_path / "b", *tiny, "--keep-thumbnails")
    assert made.code == 0, made.err
    (tmp_path / "secret").write_text("of the host")
    for picture in (tmp_path / "b" / "support").iterdir():
        picture.unlink()
        picture.symlink_to(tmp_path / "secret")
    out = tmp_path / "out"
    result = command("score", tmp_path / "b", images, "--out", out, "--report")
    assert "support/00000" in result.err
    assert "is a link" in result.err
    assert b"of the host" not in b"".join(f.read_bytes() for f in out.rglob("*") if f.is_file())


def test_zero_shot_has_no_thumbnails_to_keep(command, domains, tiny, tmp_path):
    options = ["--sources", domains[0].root.parent, "--target", "Brain", "--keep-thumbnails"]
    result = command("fit", *options, "--out", tmp_path / "z", *tiny)
    assert result.code == 2
    assert "--keep-thumbnails cannot stand beside" in result.err


@pytest.fixture
def second(domains, tiny_folder, tmp_path):
    """Another detector on the same encoder."""
    settings = recap.resolve_settings(encoder={"name": str(tiny_folder), "input_px": 70})
    recap.fit(domains[1].root / "valid" / "good", settings=settings).save(tmp_path / "chest.recap")
    return tmp_path / "chest.recap"


def test_several_detectors_see_an_image_once(
    command, bundle, second, images, tmp_path, monkeypatch
):
    from recap.encoders.vit import Encoder

    encoded, original = [], Encoder.compute
    monkeypatch.setattr(
        Encoder,
        "compute",
        lambda self, x, layers: encoded.append(len(x)) or original(self, x, layers),
    )
    out = tmp_path / "out"
    result = command("score", bundle, second, images, "--out", out)
    assert result.code == 0, result.err
    assert sum(encoded) == 4  # two images, and a blank one as each of two detectors is loaded
    for path, name in ((bundle, "brain"), (second, "chest")):
        alone = tmp_path / f"{name}-alone"
        command("score", path, images, "--out", alone)
        assert scores_by_case(out / name) == scores_by_case(alone)
        assert f"{out / name}/scores.csv" in result.out


def test_detectors_of_one_name_are_refused(command, bundle, images, tmp_path):
    other = tmp_path / "brain.recap"
    recap.load(bundle).save(other)
    result = command("score", bundle, other, images, "--out", tmp_path / "out")
    assert result.code == 2
    assert "Two detectors are called 'brain'" in result.err


def test_something_must_be_scored(command, bundle, tmp_path):
    result = command("score", bundle, "--out", tmp_path / "out")
    assert result.code == 2
    assert "Say what to score" in result.err


def test_ignored_places_are_in_no_region(command, bundle, images, tmp_path):
    masks = tmp_path / "masks"
    masks.mkdir()
    for image in images.iterdir():
        Pillow.fromarray(np.full((70, 70), 255, np.uint8)).save(masks / image.name)
    out = tmp_path / "out"
    assert command("score", bundle, images, "--out", out, "--ignore", masks).code == 0
    assert {row["regions"] for row in scores_by_case(out).values()} == {"0"}
    again = command("score", bundle, images, "--out", out)
    assert "only one of the two runs has ignore masks" in again.err


def test_ignore_masks_of_no_case_are_named(command, bundle, images, tmp_path):
    masks, out = tmp_path / "masks", tmp_path / "out"
    masks.mkdir()
    for name in (next(images.iterdir()).name, "typo.png"):
        Pillow.fromarray(np.full((70, 70), 255, np.uint8)).save(masks / name)
    result = command("score", bundle, images, "--out", out, "--ignore", masks)
    assert "Left alone: 1 other file (typo.png)" in result.err
    left_alone = json.loads((out / "manifest.json").read_text())["left_alone"]
    assert left_alone == {str(masks / "typo.png"): "an ignore mask that has the name of no case"}


def test_a_runtime_can_be_chosen(command, bundle, images, tmp_path):
    out = tmp_path / "out"
    assert command("score", bundle, images, "--out", out, "--runtime", "torch").code == 0
    runtime = json.loads((out / "manifest.json").read_text())["runtime"]
    assert (runtime["runtime"], runtime["why"]) == ("torch", "asked for")
    wrong = command("score", bundle, images, "--out", out, "--runtime", "abacus")
    assert wrong.code == 2
    assert "'abacus'" in wrong.err


def test_dicom_results_of_dicom_files(command, bundle, images, tmp_path):
    pytest.importorskip("highdicom")
    from dicom_files import save_dicom

    given = tmp_path / "given"
    given.mkdir()
    pixels = np.random.default_rng(0).integers(0, 4000, (32, 40), np.uint16)
    save_dicom(given / "one.dcm", pixels)
    (given / "two.png").write_bytes(next(images.iterdir()).read_bytes())
    out = tmp_path / "out"
    assert command("score", bundle, given, "--out", out).code == 0
    # Asked for later, they are made then; a picture has none.
    result = command("score", bundle, given, "--out", out, "--dicom")
    assert result.code == 0, result.err
    assert "DICOM results of 1 case:" in result.out
    assert [path.name for path in (out / "dicom").iterdir()] == ["one.dcm"]
    assert (out / "dicom/one.dcm/report.dcm").is_file()
    before = times(out / "dicom")
    assert command("score", bundle, given, "--out", out, "--dicom").out == result.out
    assert times(out / "dicom") == before
    assert [row["dicom"] for row in scores_by_case(out).values()] == ["dicom/one.dcm", ""]


def test_dicom_results_are_of_the_files_that_are_there_now(tmp_path):
    """Scored again without --dicom, a case has results of its earlier file, perhaps of another
    patient; a kill may have cut short those of a case that had none."""
    pytest.importorskip("highdicom")
    from dicom_files import save_dicom
    from recap.report.writers import DicomResults

    file = save_dicom(tmp_path / "one.dcm", np.zeros((8, 8), np.uint16))
    results = DicomResults(None, [Found("one.dcm", (file,))], tmp_path)
    named = Row("one.dcm", str(file), "", "ok", dicom="dicom/one.dcm")
    assert not results.is_complete(named)
    (tmp_path / "dicom/one.dcm").mkdir(parents=True)
    (tmp_path / "dicom/one.dcm/report.dcm").touch()
    assert results.is_complete(named)
    assert not results.is_complete(replace(named, dicom=""))


def test_a_case_that_breaks_dicom_results_costs_no_other(command, bundle, tmp_path, monkeypatch):
    pytest.importorskip("highdicom")
    from dicom_files import save_dicom
    from recap.report.dicom import results as dicom_results

    given, out = tmp_path / "given", tmp_path / "out"
    pixels = np.random.default_rng(0).integers(0, 4000, (3, 32, 40), np.uint16)
    for name, picture in zip(("a", "b", "c"), pixels, strict=True):
        save_dicom(given / f"{name}.dcm", picture, PatientID=name)
    capture = dicom_results.capture

    def breaks_for_b(image, map, scale, lines, frames, source, maker, series):
        if source.frames[0].header.PatientID == "b":
            raise IndexError("no such frame")
        return capture(image, map, scale, lines, frames, source, maker, series)

    monkeypatch.setattr(dicom_results, "capture", breaks_for_b)
    result = command("score", bundle, given, "--out", out, "--dicom")
    assert result.code == 1
    assert "b.dcm: its DICOM results could not be made (IndexError" in result.err
    rows = scores_by_case(out)
    assert [row["status"] for row in rows.values()] == ["ok"] * 3
    assert all(row["score"] for row in rows.values())
    errors = json.loads((out / "manifest.json").read_text())["dicom"]["errors"]
    assert list(errors) == ["b.dcm"]
    # The table and its page say of each case what it lacks.
    said = {name: row["error"] for name, row in rows.items()}
    assert said == {"a.dcm": "", "b.dcm": f"no DICOM results: {errors['b.dcm']}", "c.dcm": ""}
    assert f"no DICOM results: {escape(errors['b.dcm'])}" in write_score_page(out).read_text()
    # Nothing half made stays, so that the next run knows what is missing.
    complete = sorted(path.parent.name for path in (out / "dicom").rglob("report.dcm"))
    assert complete == ["a.dcm", "c.dcm"]
    monkeypatch.undo()
    again = command("score", bundle, given, "--out", out, "--dicom")
    assert again.code == 0, again.err
    assert {row["error"] for row in scores_by_case(out).values()} == {""}
    assert "DICOM results of 3 cases:" in again.out
