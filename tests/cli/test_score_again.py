"""What earlier runs wrote beside the table, after a later run with other files or options."""

import json
import shutil
import sys

import numpy as np
import pytest

from recap.report.writers import OldDicom
from recap.results.table import Row, Shard
from scored_folders import scores_by_case


def test_dicom_results_of_files_that_failed_or_changed_or_are_gone_are_removed(
    command, bundle, tmp_path
):
    """All that lies below results/dicom is sent to an archive."""
    pytest.importorskip("highdicom")
    from dicom_files import save_dicom

    given, out = tmp_path / "given", tmp_path / "out"
    names = ("broken", "changed", "gone", "kept")
    pictures = np.random.default_rng(0).integers(0, 4000, (5, 32, 40), np.uint16)
    for name, picture in zip(names, pictures, strict=False):
        save_dicom(given / f"{name}.dcm", picture, PatientID=name)
    assert command("score", bundle, given, "--out", out, "--dicom").code == 0
    kept = {f"kept.dcm/{file.name}" for file in (out / "dicom/kept.dcm").iterdir()}
    (out / "dicom/gone.dcm/note.txt").write_text("not ours")
    whole = (given / "broken.dcm").read_bytes()
    (given / "broken.dcm").write_bytes(whole[: len(whole) // 2])
    save_dicom(given / "changed.dcm", pictures[4], PatientID="changed")
    (given / "gone.dcm").unlink()
    assert command("score", bundle, given, "--out", out).code == 1
    left = {str(file.relative_to(out / "dicom")) for file in (out / "dicom").rglob("*.*")}
    assert left == {"gone.dcm", "gone.dcm/note.txt", "kept.dcm", *kept}
    assert {name: row["dicom"] for name, row in scores_by_case(out).items()} == {
        "broken.dcm": "",
        "changed.dcm": "",
        "kept.dcm": "dicom/kept.dcm",
    }


def test_a_shard_removes_dicom_results_of_its_own_cases_alone(command, bundle, tmp_path):
    pytest.importorskip("highdicom")
    from dicom_files import save_dicom

    given, out = tmp_path / "given", tmp_path / "out"
    for name, picture in zip("abcd", np.eye(32, dtype=np.uint16)[None].repeat(4, 0), strict=True):
        save_dicom(given / f"{name}.dcm", picture, PatientID=name)
    for shard in ("1/2", "2/2"):
        assert command("score", bundle, given, "--out", out, "--dicom", "--shard", shard).code == 0
    own = "1/2" if Shard(1, 2).holds("a.dcm") else "2/2"
    (given / "a.dcm").write_bytes((given / "a.dcm").read_bytes()[:800])
    assert command("score", bundle, given, "--out", out, "--shard", own).code == 1
    reports = sorted(file.parent.name for file in out.rglob("report.dcm"))
    assert reports == ["b.dcm", "c.dcm", "d.dcm"]


def test_results_in_folders_within_folders_are_told_apart(tmp_path):
    for name in ("a", "a/b", "c/d", "map_01.dcm"):  # the last is a file called like a result
        (tmp_path / "dicom" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "dicom" / name / "report.dcm").touch()
    named = ("a/b", "map_01.dcm")
    OldDicom(tmp_path).sweep([Row(name, "", "", "ok", dicom=f"dicom/{name}") for name in named])
    assert {file.parent.name for file in tmp_path.rglob("report.dcm")} == {"b", "map_01.dcm"}
    assert sorted(each.name for each in (tmp_path / "dicom").iterdir()) == ["a", "map_01.dcm"]
    shutil.rmtree(tmp_path / "dicom")
    OldDicom(tmp_path).sweep([])


@pytest.fixture
def earlier(command, bundle, domains, tmp_path):
    """Images, and results of them with a page and a typed table."""
    pytest.importorskip("pyarrow")
    images = shutil.copytree(domains[0].root / "test" / "good" / "img", tmp_path / "images")
    options = ("--out", tmp_path / "out", "--report", "--parquet")
    assert command("score", bundle, images, *options).code == 0
    (images / "new.png").write_bytes(next(images.iterdir()).read_bytes())
    return images, tmp_path / "out"


def test_a_page_and_a_typed_table_of_an_earlier_run_follow_the_table(command, bundle, earlier):
    import pyarrow.parquet

    images, out = earlier
    page = (out / "report.html").read_bytes()
    # A shard knows only its own cases.
    result = command("score", bundle, images, "--out", out, "--shard", "1/2")
    assert (out / "report.html").read_bytes() == page
    assert "anew" not in result.out
    result = command("score", bundle, images, "--out", out)
    assert "Written anew to match the table: scores.parquet, report.html\n" in result.out
    assert "new.png" in (out / "report.html").read_text(encoding="utf-8")
    cases = pyarrow.parquet.read_table(out / "scores.parquet")["case"].to_pylist()
    assert cases == list(scores_by_case(out))
    assert "scores.parquet" in json.loads((out / "manifest.json").read_text())["sha256"]


def test_a_typed_table_that_cannot_be_written_anew_is_removed(
    command, bundle, earlier, monkeypatch
):
    images, out = earlier
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = command("score", bundle, images, "--out", out)
    assert result.code == 0
    assert "scores.parquet was of an earlier run and is removed." in result.err
    assert not (out / "scores.parquet").exists()
