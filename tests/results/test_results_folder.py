import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from folder_runs import score_to_folder
from recap.config import ReadingSettings
from recap.data.cases import find_cases as search_cases
from recap.data.text_names import as_text, from_text
from recap.errors import InputError
from recap.results.folder import check_results_not_lost
from recap.results.manifest import Manifest
from recap.results.table import COLUMNS, Row, read_rows, write_rows
from scored_folders import read_table


@pytest.fixture
def images(domains, tmp_path):
    """A folder with five images, one of them in a subfolder and one damaged."""
    folder = tmp_path / "images"
    (folder / "sub").mkdir(parents=True)
    files = sorted((domains[0].root / "test" / "good" / "img").iterdir())
    for index, name in enumerate(["b.png", "a2.png", "sub/a2.png"]):
        shutil.copy(files[index], folder / name)
    other = next((domains[0].root / "test" / "Ungood" / "img").iterdir())
    shutil.copy(other, folder / "a10.png")
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    return folder


def draw(case, prediction, path):
    path.write_bytes(b"drawn " + str(case.images[0].size_hw).encode())


def find_cases(paths):
    return search_cases(paths, Path("no archives here")).cases


@pytest.fixture
def scored(few_shot, monkeypatch):
    """The sources that the detector scored, in no order."""
    calls, original = [], few_shot.prediction

    def prediction(output, index, image):
        calls.append(image.source)
        return original(output, index, image)

    monkeypatch.setattr(few_shot, "prediction", prediction)
    return calls


def test_rows_maps_overlays_and_manifest(few_shot, images, tmp_path):
    out = tmp_path / "out"
    rows = score_to_folder(few_shot, find_cases([images]), out, draw)
    table = read_table(out / "scores.csv")
    assert list(table[0]) == COLUMNS
    names = [row["case"] for row in table]
    assert names == ["a2.png", "a10.png", "b.png", "broken.png", "sub/a2.png"]
    assert [vars(row) for row in rows] == table
    for row in table:
        if row["case"] == "broken.png":
            continue
        prediction = few_shot.score(images / row["case"])
        assert float(row["score"]) == pytest.approx(prediction.score, rel=1e-7)
        assert float(row["score_memory"]) == pytest.approx(prediction.score_memory, rel=1e-7)
        assert np.array_equal(np.load(out / row["map"]), prediction.map)
        assert (row["height"], row["width"]) == ("70", "70")
        assert (out / row["overlay"]).read_bytes() == b"drawn (70, 70)"
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["status"] == "complete"
    assert manifest["cases"] == {"ok": 4, "error": 1}
    assert list(manifest["errors"]) == ["broken.png"]
    assert manifest["bundle"]["fingerprint"] == few_shot.card.fingerprint
    leftovers = [path for path in out.rglob("*") if ".tmp" in path.name]
    assert leftovers == []


def test_one_bad_file_is_a_row_and_the_others_are_done(few_shot, images, tmp_path):
    rows = score_to_folder(few_shot, find_cases([images]), tmp_path / "out", draw)
    failed = [row for row in rows if row.status == "error"]
    assert [row.case for row in failed] == ["broken.png"]
    assert "broken.png" in failed[0].error
    assert (failed[0].score, failed[0].map) == ("", "")
    assert sum(row.status == "ok" for row in rows) == 4


def test_a_file_that_vanished_is_a_row(few_shot, images, tmp_path):
    cases = find_cases([images])
    (images / "b.png").unlink()
    rows = score_to_folder(few_shot, cases, tmp_path / "out", draw)
    assert {row.case for row in rows if row.status == "error"} == {"b.png", "broken.png"}


def test_a_second_run_scores_nothing_again(few_shot, images, tmp_path, scored):
    cases = find_cases([images])
    first = score_to_folder(few_shot, cases, tmp_path / "out", draw)
    table = (tmp_path / "out" / "scores.csv").read_bytes()
    scored.clear()
    assert score_to_folder(few_shot, cases, tmp_path / "out", draw) == first
    assert scored == []
    assert (tmp_path / "out" / "scores.csv").read_bytes() == table


def test_a_repaired_or_changed_file_is_scored_again(few_shot, images, tmp_path, scored):
    cases = find_cases([images])
    score_to_folder(few_shot, cases, tmp_path / "out", draw)
    scored.clear()
    shutil.copy(images / "b.png", images / "broken.png")
    shutil.copy(images / "a10.png", images / "a2.png")
    rows = score_to_folder(few_shot, cases, tmp_path / "out", draw)
    assert sorted(scored) == [str(images / "a2.png"), str(images / "broken.png")]
    assert all(row.status == "ok" for row in rows)
    by_case = {row.case: row.score for row in rows}
    assert by_case["a2.png"] == by_case["a10.png"]


@pytest.mark.parametrize("lost", ["maps", "overlays"])
def test_lost_results_are_made_again(lost, few_shot, images, tmp_path, scored):
    cases, out = find_cases([images]), tmp_path / "out"
    first = score_to_folder(few_shot, cases, out, draw)
    (gone,) = (out / lost).glob("a2.png*")
    content = gone.read_bytes()
    gone.unlink()
    scored.clear()
    assert score_to_folder(few_shot, cases, out, draw) == first
    assert scored == [str(images / "a2.png")]
    assert gone.read_bytes() == content


def test_an_interrupted_run_goes_on(few_shot, images, tmp_path, scored):
    cases, out = find_cases([images]), tmp_path / "out"
    whole = score_to_folder(few_shot, cases, tmp_path / "whole", draw)
    scored.clear()

    def kill(stage, done, total, name):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_to_folder(few_shot, cases, out, draw, kill)
    assert json.loads((out / "manifest.json").read_text())["status"] == "running"
    assert {row["case"] for row in read_table(out / "scores.csv")} == {"a2.png", "a10.png", "b.png"}
    assert score_to_folder(few_shot, cases, out, draw) == whole
    assert len(scored) == len(set(scored)) == 4
    assert (out / "scores.csv").read_bytes() == (tmp_path / "whole" / "scores.csv").read_bytes()


@pytest.mark.parametrize("cut", [1, 3, 20, 60, 150])
def test_a_line_cut_short_is_scored_again(cut, few_shot, images, tmp_path, scored):
    cases, out = find_cases([images]), tmp_path / "out"
    whole = score_to_folder(few_shot, cases, out, draw)
    table = out / "scores.csv"
    complete = table.read_bytes()
    table.write_bytes(complete[:-cut])
    assert score_to_folder(few_shot, cases, out, draw) == whole
    assert table.read_bytes() == complete


def test_a_line_cut_within_a_letter(few_shot, images, tmp_path):
    (images / "b.png").rename(images / "zé.png")
    cases, out = find_cases([images]), tmp_path / "out"
    whole = score_to_folder(few_shot, cases, out, draw)
    table = out / "scores.csv"
    complete = table.read_bytes()
    start = complete.rindex("zé.png".encode())
    table.write_bytes(complete[: start + 2])
    assert score_to_folder(few_shot, cases, out, draw) == whole


@pytest.mark.skipif(os.name != "posix", reason="file names are bytes on POSIX only")
def test_a_file_name_that_is_not_text_is_scored(few_shot, images, tmp_path):
    try:
        (images / "b.png").rename(os.fsdecode(os.fsencode(images) + b"/\xff.png"))
    except OSError:
        pytest.skip("this file system wants UTF-8 names")
    cases, out = find_cases([images]), tmp_path / "out"
    first = score_to_folder(few_shot, cases, out, draw)
    assert sum(row.status == "ok" for row in first) == 4
    assert score_to_folder(few_shot, cases, out, draw) == first
    row = next(row for row in read_table(out / "scores.csv") if "udc" in row["case"])  # as UTF-8
    assert (row["case"], row["map"]) == (r"\udcff.png", r"maps/\udcff.png.npy")


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("é \udce9.png", r"é \udce9.png"),
        (r"\udce9", r"\udc5cudce9"),
        ("\\\udce9", r"\\udce9"),
        (r"C:\udcases\u.png", r"C:\udcases\u.png"),
        (r"\udc5cudce9", r"\udc5cudc5cudce9"),
    ],
)
def test_names_that_are_not_text_come_back(name, written):
    assert as_text(name) == written
    assert from_text(written) == name
    assert written.encode()


def test_awkward_names_survive_the_table(few_shot, images, tmp_path):
    (images / "b.png").rename(images / 'a, "b"; c.png')
    cases, out = find_cases([images]), tmp_path / "out"
    first = score_to_folder(few_shot, cases, out, draw)
    assert score_to_folder(few_shot, cases, out, draw) == first
    assert 'a, "b"; c.png' in [row["case"] for row in read_table(out / "scores.csv")]


def test_results_of_another_detector_are_kept_apart(few_shot, detectors, images, tmp_path):
    cases, out = find_cases([images]), tmp_path / "out"
    score_to_folder(few_shot, cases, out, draw)
    before = (out / "scores.csv").read_bytes()
    with pytest.raises(InputError, match=r"another detector.*--out"):
        score_to_folder(detectors["zero-shot"], cases, out, draw)
    assert (out / "scores.csv").read_bytes() == before


def test_results_of_another_runtime_are_kept_apart(few_shot, images, tmp_path):
    cases, out = find_cases([images]), tmp_path / "out"
    score_to_folder(few_shot, cases, out, draw)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["runtime"]["runtime"] = "onnx"
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"the runtime onnx.*with torch.*--runtime onnx"):
        score_to_folder(few_shot, cases, out, draw)
    assert json.loads((out / "manifest.json").read_text()) == manifest


def test_results_of_another_int8_graph_are_kept_apart(few_shot, tmp_path, monkeypatch):
    """The same detector, exported anew with other images, scores otherwise."""

    def folder_of(graph):
        told = {"runtime": "openvino-int8", **({"graph": graph} if graph else {})}
        monkeypatch.setattr(Manifest, "_runtime", told)
        return Manifest(tmp_path, few_shot, ReadingSettings())

    folder_of("a").write("running", [])
    folder_of("a").refuse_other_results()
    with pytest.raises(InputError, match=r"another graph for openvino-int8.*--out"):
        folder_of("b").refuse_other_results()
    folder_of(None).write("running", [])  # by an earlier version
    folder_of("b").refuse_other_results()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"bundle": 3}'])
def test_a_damaged_manifest_is_named(content, few_shot, images, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=r"manifest\.json is damaged"):
        score_to_folder(few_shot, find_cases([images]), tmp_path / "out", draw)


def test_a_foreign_table_is_not_overwritten(few_shot, images, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "scores.csv").write_text("name,mark\nAnna,1\n")
    with pytest.raises(InputError, match=r"scores\.csv was not written by this version"):
        score_to_folder(few_shot, find_cases([images]), out, draw)
    assert (out / "scores.csv").read_text() == "name,mark\nAnna,1\n"


def test_a_table_of_an_earlier_version_is_read(tmp_path):
    row = Row("a", "b/a", "c", "ok", score="0.5", error="none")
    write_rows(tmp_path / "new.csv", [row])
    given = read_table(tmp_path / "new.csv")
    with (tmp_path / "old.csv").open("w", newline="") as file:
        writer = csv.DictWriter(
            file, [c for c in COLUMNS if c not in ("dicom", "ignore_sha256")], extrasaction="ignore"
        )
        writer.writeheader()
        writer.writerows(given)
    assert read_rows(tmp_path / "old.csv") == read_rows(tmp_path / "new.csv") == [row]


def test_same_names_in_two_folders_do_not_collide(few_shot, images, tmp_path):
    other = tmp_path / "second" / "images"
    shutil.copytree(images, other)
    shutil.copy(images / "a10.png", other / "b.png")
    cases = find_cases([images, other, images / "b.png"])
    assert len({case.name for case in cases}) == 11
    rows = score_to_folder(few_shot, cases, tmp_path / "out", draw)
    done = [row for row in rows if row.status == "ok"]
    assert len({row.map for row in done}) == len({row.overlay for row in done}) == 9
    for row in done:
        expected = few_shot.score(row.path).map
        assert np.array_equal(np.load(tmp_path / "out" / row.map), expected)


def test_cases_of_a_single_file_and_of_a_folder(images):
    assert [case.name for case in find_cases([images / "b.png"])] == ["b.png"]
    assert "sub/a2.png" in [case.name for case in find_cases([images])]


def test_no_images_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no images"):
        find_cases([tmp_path])
    with pytest.raises(InputError, match="no such file"):
        find_cases([tmp_path / "nowhere"])


def test_progress_names_each_case(few_shot, images, tmp_path):
    steps = []
    cases = find_cases([images])
    score_to_folder(few_shot, cases, tmp_path / "out", draw, lambda *step: steps.append(step))
    named = [("score", i, 5, case.name) for i, case in enumerate(cases)]
    assert steps == [*named, ("score", 5, 5, "")]


def test_nothing_is_pickled(few_shot, images, tmp_path):
    rows = score_to_folder(few_shot, find_cases([images]), tmp_path / "out", draw)
    for row in rows:
        if row.status == "ok":
            np.load(tmp_path / "out" / row.map, allow_pickle=False)


def test_a_case_whose_results_have_no_place_costs_no_other(few_shot, images, tmp_path):
    """The overlay of a picture `a` is called `a.png`, as a folder of pictures may be."""
    (tmp_path / "in" / "a.png").mkdir(parents=True)
    shutil.copy(images / "b.png", tmp_path / "in" / "a")
    shutil.copy(images / "a2.png", tmp_path / "in" / "a.png" / "x.png")
    shutil.copy(images / "a2.png", tmp_path / "in" / "z.png")
    cases = find_cases([tmp_path / "in"])
    rows = score_to_folder(few_shot, cases, tmp_path / "out", draw, workers=1, batch=1)
    assert [(row.case, row.status) for row in rows] == [
        ("a", "ok"),
        ("a.png/x.png", "error"),
        ("z.png", "ok"),
    ]
    assert "a.png is a file, but a folder is needed" in rows[1].error


def test_two_runs_do_not_write_one_folder_at_a_time(few_shot, images, tmp_path):
    pytest.importorskip("fcntl")
    out, cases = tmp_path / "out", find_cases([images])
    said = []

    def start_another(stage, done, total, name):
        if not said:
            said.append("")
            with pytest.raises(InputError, match="out is being written by another run"):
                score_to_folder(few_shot, cases, out, draw)

    score_to_folder(few_shot, cases, out, draw, start_another)
    assert said
    assert not any(file.name.startswith(".") for file in out.iterdir())


def test_results_know_their_files_in_whichever_folder_a_run_is_started(
    few_shot, images, tmp_path, monkeypatch, scored
):
    """Two patients may both have a folder `slices` with the same names."""
    out, one, two = tmp_path / "out", tmp_path / "one", tmp_path / "two"
    for patient, picture in ((one, "b.png"), (two, "a2.png")):
        (patient / "slices").mkdir(parents=True)
        shutil.copy(images / picture, patient / "slices" / "1.png")
    slices = [Path("slices")]
    monkeypatch.chdir(one)
    score_to_folder(few_shot, find_cases(slices), out, draw)
    monkeypatch.chdir(two)
    with pytest.raises(InputError, match=r"results of other files, such as .*one/slices/1"):
        check_results_not_lost(out, find_cases(slices), slices)
    one.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    (row,) = score_to_folder(few_shot, find_cases(slices), out, draw)
    assert (row.path, len(scored)) == (str(tmp_path / "moved" / "slices" / "1.png"), 1)
