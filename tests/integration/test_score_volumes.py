"""`recap score` on what hospitals hold: volumes, series, clips, archives, and what is broken."""

import json
import os
import sys
import zipfile
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image as PillowImage

import recap
from dicom_files import item, place, save_dicom, save_series, write
from folder_runs import score_to_folder
from quick_encoder import encoder_read_once  # noqa: F401
from recap.cli.main import main
from recap.config import ReadingSettings
from recap.data.cases import find_cases
from scored_folders import read_table, scores_by_case
from volume_files import affine, turn, write_nifti, write_nrrd

pytestmark = pytest.mark.slow

ABDOMEN, TOP_K = (-160, 240), 0.4


def hounsfield(shape, seed=0):
    """Grows from slice to slice, so that each is told from its neighbours."""
    noise = np.random.default_rng(seed).normal(0, 60, shape)
    return (noise + np.linspace(-80, 180, shape[0])[:, None, None]).astype(np.int16)


def shown(stored):
    return np.clip((stored.astype(np.float32) - ABDOMEN[0]) / (ABDOMEN[1] - ABDOMEN[0]), 0, 1)


@pytest.fixture(scope="module")
def detector(tiny_folder):
    rng = np.random.default_rng(0)
    settings = recap.resolve_settings(
        encoder={"name": str(tiny_folder), "input_px": 70},
        reading={"window": "abdomen", "volume_top_k": TOP_K},
    )
    return recap.fit([rng.random((40, 40)).astype(np.float32) for _ in range(2)], settings=settings)


@pytest.fixture(scope="module")
def bundle(detector, tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "b.recap"
    detector.save(path)
    return path


@pytest.fixture
def command(monkeypatch, capsys):
    """command("score", …): exit code and what was said."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["recap", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return code, "".join(capsys.readouterr())

    return run


def slice_scores(out, row):
    lines = read_table(out / row["table"])
    assert [line["number"] for line in lines] == [str(n) for n in range(len(lines))]
    return [float(line["score"]) for line in lines]


RAS = np.diag([0.8, 0.9, 2.5, 1.0])
OBLIQUE = affine(turn((11, -19, 8)) @ np.array([[0, 1, 0], [0, 0, -1], [-1, 0, 0]]))
CT = hounsfield((7, 30, 26))
BRAIN = hounsfield((6, 28, 24), 1).transpose(2, 1, 0)  # stored (i, j, k)
LIVER = hounsfield((20, 18, 9), 2)
CLIP = np.random.default_rng(3).integers(0, 256, (4, 21, 33), np.uint8)


def make_study(folder):
    """A CT series whose file names are no help, a localiser and a report."""
    save_series(folder, CT)
    save_dicom(
        folder / "IM0000scout",
        CT[0],
        Modality="CT",
        ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"],
        **place((0, 0, 0), (1, 0, 0, 0, 0, -1)),
    )
    report = item(
        SOPClassUID="1.2.840.10008.5.1.4.1.1.88.11", SOPInstanceUID="1.2.9", Modality="SR"
    )
    write(folder / "IM0000report", report)
    return folder


@pytest.fixture
def mixed(tmp_path):
    root = tmp_path / "mixed"
    (root / "pictures").mkdir(parents=True)
    rng = np.random.default_rng(4)
    for name in ("a10.png", "a2.png"):
        picture = rng.integers(0, 256, (31, 45), np.uint8)
        PillowImage.fromarray(picture).save(root / "pictures" / name)
    write_nifti(root / "brain.nii.gz", BRAIN, RAS)
    write_nrrd(root / "liver.nrrd", LIVER, OBLIQUE)
    make_study(root / "ct")
    save_dicom(root / "clip.dcm", CLIP, Modality="US")
    whole = (root / "brain.nii.gz").read_bytes()
    (root / "broken.nii.gz").write_bytes(whole[: len(whole) // 2])
    (root / "notes.txt").write_text("BMI of all patients\n")
    return root


def test_a_folder_of_everything(mixed, bundle, detector, command, tmp_path):
    out = tmp_path / "out"
    code, said = command("score", bundle, mixed, "--out", out)
    table = scores_by_case(out)
    assert code == 1
    assert "Left alone: 2 other files" in said  # the report and the notes
    kinds = {name: (row["kind"], row["images"]) for name, row in table.items()}
    assert kinds == {
        "brain.nii.gz": ("volume", "6"),
        "broken.nii.gz": ("", ""),
        "clip.dcm": ("frames", "4"),
        "ct/IM0000scout": ("image", "1"),
        "ct/series-1": ("volume", "7"),
        "liver.nrrd": ("volume", "20"),
        "pictures/a2.png": ("image", "1"),
        "pictures/a10.png": ("image", "1"),
    }
    assert list(table)[-2:] == ["pictures/a2.png", "pictures/a10.png"]
    broken = table.pop("broken.nii.gz")
    assert broken["status"] == "error"
    assert "broken.nii.gz" in broken["error"]
    assert "\n" not in broken["error"]
    for row in table.values():
        assert row["status"] == "ok"
        assert (row["table"] != "") == (row["kind"] != "image")
        assert PillowImage.open(out / row["overlay"]).format == "PNG"
        if row["table"]:
            scores = sorted(slice_scores(out, row))
            assert len(scores) == int(row["images"])
            best = scores[-max(1, int(TOP_K * len(scores))) :]
            assert float(row["score"]) == pytest.approx(np.mean(best), rel=1e-6)
    liver = nibabel.load(out / table["liver.nrrd"]["map"])
    assert liver.shape == LIVER.shape
    assert np.allclose(liver.affine, OBLIQUE, atol=1e-4)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["status"] == "complete"
    assert manifest["cases"] == {"ok": 7, "error": 1}
    assert not (out / "parts").exists()
    assert not [path for path in out.rglob("*") if "tmp" in path.name or "partial" in path.name]


def test_slices_of_a_series_are_in_the_order_of_their_place(detector, tmp_path):
    """Also the map lies over the slices: stored (column, row, slice), towards left and back."""
    make_study(tmp_path / "ct")
    score(detector, tmp_path / "ct", tmp_path / "out")
    row = scores_by_case(tmp_path / "out")["series-1"]
    expected = [detector.score(shown(pixels)) for pixels in CT]
    scores = [prediction.score for prediction in expected]
    assert slice_scores(tmp_path / "out", row) == pytest.approx(scores, rel=1e-5)
    assert len(set(np.round(scores, 6))) == len(CT)
    written = nibabel.load(tmp_path / "out" / row["map"])
    assert np.allclose(
        written.affine, [[-1, 0, 0, 10], [0, -1, 0, 20], [0, 0, 2, -30], [0, 0, 0, 1]]
    )
    stack = np.stack([prediction.map for prediction in expected])
    assert np.allclose(written.get_fdata(), stack.transpose(2, 1, 0), atol=1e-5)


def test_a_volume_is_shown_as_radiologists_look_at_it(detector, tmp_path):
    path = write_nifti(tmp_path / "brain.nii.gz", BRAIN, RAS)
    score(detector, path, tmp_path / "out")
    row = scores_by_case(tmp_path / "out")["brain.nii.gz"]
    written = nibabel.load(tmp_path / "out" / row["map"])
    assert np.array_equal(written.affine, RAS.astype(np.float32))
    assert written.shape == BRAIN.shape
    scores = slice_scores(tmp_path / "out", row)
    for k in range(BRAIN.shape[2]):
        # Rows from front to back, columns from right to left.
        prediction = detector.score(shown(BRAIN[::-1, ::-1, k].T))
        assert scores[k] == pytest.approx(prediction.score, rel=1e-5)
        back = prediction.map.T[::-1, ::-1]
        assert np.allclose(written.get_fdata()[:, :, k], back, atol=1e-5)
    assert (row["height"], row["width"]) == ("28", "24")


def test_frames_have_a_map_each(detector, tmp_path):
    path = save_dicom(tmp_path / "clip.dcm", CLIP, Modality="US", WindowCenter=128, WindowWidth=256)
    score(detector, path, tmp_path / "out", ReadingSettings(volume_top_k=1.0))
    row = scores_by_case(tmp_path / "out")["clip.dcm"]
    expected = [detector.score(frame) for frame in CLIP]
    maps = np.load(tmp_path / "out" / row["map"])
    assert maps.shape == CLIP.shape
    assert np.allclose(maps, [prediction.map for prediction in expected], atol=1e-4)
    mean = np.mean([prediction.score for prediction in expected])
    assert float(row["score"]) == pytest.approx(mean, rel=1e-4)


def draw(case, prediction, path):
    path.write_bytes(b"drawn")


def score(detector, path, out, reading=None, progress=lambda *step: None):
    cases = find_cases([path], out.with_name("scratch")).cases
    return score_to_folder(detector, cases, out, draw, progress, reading=reading)


def files(out):
    """Everything that was written but the manifest, which tells the time."""
    found = (path for path in out.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {path.relative_to(out): path.read_bytes() for path in found}


@pytest.fixture
def scored(detector, monkeypatch):
    """The sources that the detector scored, in no order."""
    calls, original = [], detector.prediction
    monkeypatch.setattr(
        detector, "prediction", lambda *args: calls.append(args[2].source) or original(*args)
    )
    return calls


def stop_at(number):
    def progress(stage, done, total, name):
        if (stage, done) == ("images", number):
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("kind", ["nifti", "series"])
def test_interrupted_inside_a_volume_and_resumed(kind, detector, scored, tmp_path):
    if kind == "nifti":
        path = write_nifti(tmp_path / "brain.nii", BRAIN, OBLIQUE)
    else:
        path = make_study(tmp_path / "ct")
    score(detector, path, tmp_path / "whole")
    once = sorted(scored)
    scored.clear()
    with pytest.raises(KeyboardInterrupt):
        score(detector, path, tmp_path / "out", progress=stop_at(4))
    assert len(scored) in (4, 5)  # the localiser comes first
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["status"] == "running"
    score(detector, path, tmp_path / "out")
    assert sorted(scored) == once
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_volume_that_changed_meanwhile_is_scored_from_its_start(detector, scored, tmp_path):
    path = write_nifti(tmp_path / "brain.nii", BRAIN, RAS)
    with pytest.raises(KeyboardInterrupt):
        score(detector, path, tmp_path / "out", progress=stop_at(4))
    write_nifti(path, BRAIN[::-1], RAS)
    scored.clear()
    score(detector, path, tmp_path / "out")
    assert len(scored) == 6
    score(detector, path, tmp_path / "whole")
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_voxels_of_a_pair_that_changed_are_noticed(detector, scored, tmp_path):
    path = write_nifti(tmp_path / "brain.hdr", BRAIN, RAS)
    for given in (tmp_path / "brain.hdr", tmp_path / "brain.img", tmp_path):
        out = tmp_path.with_name(f"out of {given.name}")
        score(detector, given, out)
        write_nifti(path, BRAIN[::-1], RAS)
        scored.clear()
        assert [row.status for row in score(detector, given, out)] == ["ok"]
        assert len(scored) == 6
        write_nifti(path, BRAIN, RAS)


def test_a_series_that_lost_a_slice_leaves_nothing_for_others(detector, scored, tmp_path):
    """Neither has a digest, and what one left must not be taken for the other's."""
    for uid in ("1.2.3", "1.2.4"):
        save_series(tmp_path / uid, hounsfield((5, 20, 20)), SeriesInstanceUID=uid)
    cases = find_cases([tmp_path], tmp_path / "scratch").cases
    for case in cases:
        case.files[-1].unlink()
    found = score_to_folder(detector, cases, tmp_path / "out", draw)
    assert [row.status for row in found] == ["error", "error"]
    assert all("there is no such file" in row.error for row in found)
    # Slices of both were scored; how many more, before the missing one ended it, varies.
    assert {Path(source).parent.name for source in scored} == {"1.2.3", "1.2.4"}


def test_a_pipe_is_not_waited_for(detector, tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (row,) = score(detector, tmp_path / "pipe.png", tmp_path / "out")
    assert row.status == "error"


def test_an_overlay_that_fails_is_a_row(detector, tmp_path):
    for name in ("a.png", "b.png"):
        PillowImage.new("L", (20, 20)).save(tmp_path / name)

    def fails(case, prediction, path):
        if case.source.endswith("a.png"):
            raise recap.errors.InputError("a.png: no thumbnail")
        draw(case, prediction, path)

    cases = find_cases([tmp_path], tmp_path / "scratch").cases
    found = score_to_folder(detector, cases, tmp_path.with_name("out-overlay"), fails)
    assert [(row.status, row.error) for row in found] == [
        ("error", "a.png: no thumbnail"),
        ("ok", ""),
    ]


def test_window_and_axis_are_recorded_and_never_mixed(bundle, command, tmp_path):
    path, out = write_nifti(tmp_path / "brain.nii", BRAIN, RAS), tmp_path / "out"
    base = ("score", bundle, path, "--out")
    assert command(*base, out, "--window", "-20,90", "--axis", "coronal")[0] == 0
    read_as = json.loads((out / "manifest.json").read_text())["reading"]
    assert (read_as["window"], read_as["axis"], read_as["volume_top_k"]) == (
        "-20,90",
        "coronal",
        0.4,
    )
    row = scores_by_case(out)["brain.nii"]
    assert (row["images"], row["height"], row["width"]) == ("28", "6", "24")
    before = files(out)
    for other in (["--axis", "coronal"], ["--window", "-20,90", "--axis", "axial"], []):
        code, said = command(*base, out, *other)
        assert code == 2
        assert "read with other settings" in said
        assert "Choose another --out" in said
        assert files(out) == before
    assert command(*base, out, "--window", "-20,90", "--axis", "coronal")[0] == 0
    assert command(*base, tmp_path / "plain")[0] == 0
    read_as = json.loads((tmp_path / "plain" / "manifest.json").read_text())["reading"]
    assert (read_as["window"], read_as["axis"]) == ("abdomen", "auto")


@pytest.mark.parametrize("wrong", [["--window", "liver"], ["--window", "9,1"], ["--axis", "up"]])
def test_a_wrong_window_or_axis_is_told_at_once(wrong, bundle, command, tmp_path):
    path = write_nifti(tmp_path / "brain.nii", BRAIN, RAS)
    code, said = command("score", bundle, path, "--out", tmp_path / "out", *wrong)
    assert code == 2
    assert wrong[1] in said
    assert not (tmp_path / "out").exists()


def pack(folder: Path, archive: Path):
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as stream:
        for file in sorted(folder.rglob("*")):
            stream.write(file, file.relative_to(folder))
    return archive


def test_a_zip_is_scored_like_its_folder(bundle, command, tmp_path):
    make_study(tmp_path / "study" / "ct")
    cut = tmp_path / "study" / "cut.dcm"
    save_dicom(cut, CT[0], Modality="DX")
    cut.write_bytes(cut.read_bytes()[:-500])
    archive = pack(tmp_path / "study", tmp_path / "study.zip")
    assert command("score", bundle, tmp_path / "study", "--out", tmp_path / "folder")[0] == 1
    assert command("score", bundle, archive, "--out", tmp_path / "zip")[0] == 1
    first = scores_by_case(tmp_path / "zip")
    by_folder = scores_by_case(tmp_path / "folder")
    same = ("case", "sha256", "status", "kind", "score", "map", "table")
    assert [[row[key] for key in same] for row in first.values()] == [
        [row[key] for key in same] for row in by_folder.values()
    ]
    # Where it was unpacked to is gone by now, and no business of the table's.
    assert first["ct/series-1"]["path"] == str(archive / "ct")
    assert first["ct/IM0000scout"]["path"] == str(archive / "ct" / "IM0000scout")
    assert first["cut.dcm"]["error"].startswith(f"{archive / 'cut.dcm'}: ")
    maps = {k: v for k, v in files(tmp_path / "zip").items() if k.parts[0] in ("maps", "images")}
    assert maps.items() <= files(tmp_path / "folder").items()
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "zip" / "maps").rglob("*.gz")}
    assert command("score", bundle, archive, "--out", tmp_path / "zip")[0] == 1
    assert scores_by_case(tmp_path / "zip") == first
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_a_damaged_zip_does_not_stop_the_others(bundle, command, tmp_path):
    save_dicom(tmp_path / "study" / "a.dcm", CT[0])
    archive = pack(tmp_path / "study", tmp_path / "study.zip")
    archive.write_bytes(archive.read_bytes()[:300])
    code, said = command("score", bundle, archive, tmp_path / "study", "--out", tmp_path / "out")
    assert code == 1
    assert "study.zip" in said
    status = [row["status"] for row in scores_by_case(tmp_path / "out").values()]
    assert status == ["error", "ok"]
