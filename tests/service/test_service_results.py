"""Results of all kinds of files, as the API gives them out."""

import csv
import gzip
import io
import json
import zipfile
from contextlib import suppress
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image as Pillow

import recap
from folder_runs import score_case, score_to_folder
from recap.config import ReadingSettings
from recap.data.cases import find_cases
from recap.errors import InputError
from recap.io import open_file
from recap.scoring.detector import Detector
from recap.service.download import _then_remove
from recap.service.work import score_job
from service_calls import API, ended, png, upload, zipped


def picture(answer):
    assert answer.headers["content-type"] == "image/png"
    return np.asarray(Pillow.open(io.BytesIO(answer.content)))


def result_of(client, *files, **data):
    job = ended(client, upload(client, *files, **data))
    assert job["status"] == "done", job
    return job, f"{API}/jobs/{job['id']}"


def test_a_picture_gets_the_score_and_map_of_the_detector_itself(client, bundles, tmp_path):
    job, address = result_of(client, png(3), bundle="brain")
    (tmp_path / "same.png").write_bytes(png(3))
    expected = recap.load(bundles[0]).score(tmp_path / "same.png")
    (case,) = client.get(f"{address}/cases").json()
    assert case["score"] == expected.score
    assert case["decision"]["p_value"] == expected.decision.p_value
    assert (case["name"], case["kind"], case["images"]) == ("0.png", "image", 1)
    assert case["size_hw"] == [40, 60]
    raw = client.get(f"{address}/cases/0/map/0.f32")
    assert raw.headers["X-Shape"] == "40,60"
    found = np.frombuffer(raw.content, "<f4").reshape(40, 60)
    np.testing.assert_array_equal(found, expected.map)
    assert job["result"]["cases"][0]["score"] == expected.score


def test_pictures_of_a_case(client):
    _, address = result_of(client, ("a.png", png(4, colour=True)))
    (case,) = client.get(f"{address}/cases").json()
    shown = picture(client.get(f"{address}/cases/0/image/0.png"))
    np.testing.assert_array_equal(shown, Pillow.open(io.BytesIO(png(4, colour=True))))
    low, high = case["scale"]
    raw = client.get(f"{address}/cases/0/map/0.f32").content
    map = np.frombuffer(raw, "<f4").reshape(40, 60)
    grey = picture(client.get(f"{address}/cases/0/map/0.png"))
    expected = (np.clip((map - low) / (high - low), 0, 1) * 255).round()
    np.testing.assert_array_equal(grey, expected.astype(np.uint8))
    assert picture(client.get(f"{address}/cases/0/overlay/0.png")).shape == (40, 60, 3)


def test_a_case_is_found_by_number_and_by_name_and_nothing_else(client):
    _, address = result_of(client, ("ä b/c.png", png()))
    for case in ("0", "ä b/c.png"):
        assert client.get(f"{address}/cases/{case}/image/0.png").status_code == 200
    for case in ("1", "-1", "x", "c.png", "../../0", "%2e%2e%2f0"):
        assert client.get(f"{address}/cases/{case}/image/0.png").status_code == 404
    assert client.get(f"{address}/cases/0/image/1.png").status_code == 404
    assert client.get(f"{address}/cases/0/image/x.png").status_code == 422


def test_a_number_is_never_taken_for_a_name(client):
    """Files without endings, as scanners export them, may be called as cases are numbered."""
    contents = [png(seed) for seed in range(3)]
    files = [(name, content) for name, content in zip("120", contents, strict=True)]
    _, address = result_of(client, *files)
    cases = client.get(f"{address}/cases").json()
    assert [case["name"] for case in cases] == ["1", "2", "0"]
    for number, content in enumerate(contents):
        shown = picture(client.get(f"{address}/cases/{number}/image/0.png"))
        np.testing.assert_array_equal(shown, Pillow.open(io.BytesIO(content)))


def test_a_volume_comes_back_on_its_own_grid(client, volume, bundles, tmp_path):
    nibabel = pytest.importorskip("nibabel")
    job, address = result_of(client, ("brain.nii", volume), bundle="brain")
    (tmp_path / "same.nii").write_bytes(volume)
    case = open_file(tmp_path / "same.nii", ReadingSettings())
    expected = score_case(recap.load(bundles[0]), case)
    (found,) = client.get(f"{address}/cases").json()
    assert (found["kind"], found["images"], found["score"]) == ("volume", 4, expected.score)
    assert found["image_scores"] == [image.score for image in expected.images]
    packed = client.get(f"{address}/result.nii.gz").content
    assert packed == client.get(f"{address}/cases/0/map.nii.gz").content
    map = nibabel.Nifti1Image.from_bytes(gzip.decompress(packed))
    np.testing.assert_array_equal(map.affine, np.diag([2.0, 2.0, 3.0, 1.0]))
    np.testing.assert_array_equal(map.get_fdata(), case.grid.restore(expected.map))
    assert job["images"] == 4


def test_a_zip_is_several_cases_and_bad_files_are_told(client):
    archive = zipped({"p1/a.png": png(1), "p2/a.png": png(2), "bad.png": b"none", "note.txt": b"x"})
    job, address = result_of(client, ("all.zip", archive))
    cases = client.get(f"{address}/cases").json()
    assert [(case["name"], case["status"]) for case in cases] == [
        ("p1/a.png", "ok"),
        ("p2/a.png", "ok"),
        ("bad.png", "error"),
    ]
    assert cases[2]["error"].startswith("bad.png: ")
    assert (job["result"]["count"], job["result"]["failed"]) == (3, 1)
    assert client.get(f"{address}/cases/p2/a.png/image/0.png").status_code == 200
    assert client.get(f"{address}/cases/2/image/0.png").status_code == 404


def test_the_download_holds_table_maps_and_overlays(client, volume):
    files = [("=1+1.png", png(1)), ("v.nii", volume)]
    _, address = result_of(client, *files)
    answer = client.get(f"{address}/download.zip")
    assert "attachment" in answer.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        table = archive.read("scores.csv").decode().splitlines()
        content = json.loads(archive.read("result.json"))
        map = np.load(io.BytesIO(archive.read("maps/00000-1_1.png.npy")))
    assert len(table) == 3
    assert table[1].startswith("'=1+1.png,ok,image,1,")  # no spreadsheet runs a formula
    assert map.shape == (1, 40, 60)
    assert len(content["cases"]) == 2
    assert "maps/00001-v.nii.map.nii.gz" in names
    assert "overlays/00001-v.nii.png" in names


def test_outside_the_domain_is_neither_normal_nor_abnormal(
    client, domains, bundles, volume, tmp_path
):
    folder = tmp_path / "given"
    folder.mkdir()
    inside = sorted((domains[0].root / "valid" / "good" / "img").iterdir())[0]
    (folder / "inside.png").write_bytes(inside.read_bytes())
    (folder / "noise.png").write_bytes(png(1, (70, 70)))
    (folder / "v.nii").write_bytes(volume)  # of a kind that it was not calibrated on
    files = [(path.name, path.read_bytes()) for path in sorted(folder.iterdir())]
    job, address = result_of(client, *files, bundle="brain")
    assert [case["in_domain"] for case in job["result"]["cases"]] == [True, False, False]
    cases = client.get(f"{address}/cases").json()
    assert [case["domain"]["in_domain"] for case in cases] == [True, False, False]
    assert cases[2]["decision"] is None
    assert "calibrated on images" in cases[2]["undecided"]
    assert cases[2]["domain"]["warning"].startswith("OUT OF DOMAIN")
    given = find_cases([folder], tmp_path).cases
    score_to_folder(recap.load(bundles[0]), given, tmp_path / "out", lambda *_: None)
    with (tmp_path / "out" / "scores.csv").open() as stream:
        expected = list(csv.DictReader(stream))
    assert [row["decision"] for row in expected[1:]] == ["out-of-domain"] * 2
    packed = io.BytesIO(client.get(f"{address}/download.zip").content)
    with zipfile.ZipFile(packed) as archive:
        found = list(csv.DictReader(archive.read("scores.csv").decode().splitlines()))
    here = list(found[0])
    assert here == [name for name in expected[0] if name in here]  # the same order
    for mine, other in zip(found, expected, strict=True):
        assert mine == {name: other[name] for name in here}


def test_results_wait_for_the_job(make_client):
    client = make_client()
    jobs = client.app.state.service.jobs
    jobs.claim = lambda lane, most=1: []
    job = upload(client, png()).json()["id"]
    for rest in ("cases", "result.json", "download.zip", "cases/0/image/0.png"):
        assert client.get(f"{API}/jobs/{job}/{rest}").status_code == 409


def test_a_picture_has_neither_a_volume_nor_dicom_results(client):
    _, address = result_of(client, png())
    assert client.get(f"{address}/result.nii.gz").status_code == 404
    assert client.get(f"{address}/cases/0/map.nii.gz").status_code == 404
    assert client.get(f"{address}/result.dcm.zip").status_code in (404, 501)


def test_dicom_results_are_of_the_same_patient(client, tmp_path):
    pydicom = pytest.importorskip("pydicom")
    pytest.importorskip("highdicom")
    from dicom_files import save_dicom

    pixels = np.random.default_rng(0).integers(0, 255, (32, 32), np.uint8)
    path = save_dicom(tmp_path / "x.dcm", pixels, PatientName="Doe^Jane", PatientID="P7")
    source = pydicom.dcmread(path)
    _, address = result_of(client, ("x.dcm", path.read_bytes()))
    answer = client.get(f"{address}/result.dcm.zip")
    assert answer.status_code == 200, answer.text
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        found = [pydicom.dcmread(io.BytesIO(archive.read(name))) for name in archive.namelist()]
    assert found
    assert {(each.PatientID, each.StudyInstanceUID) for each in found} == {
        ("P7", source.StudyInstanceUID)
    }


@pytest.mark.parametrize("error", [InputError("no"), MemoryError()])
def test_dicom_results_that_cannot_be_made_leave_no_files(client, tmp_path, monkeypatch, error):
    pytest.importorskip("highdicom")
    from dicom_files import save_dicom

    def fail(*arguments):
        raise error

    path = save_dicom(tmp_path / "x.dcm", np.zeros((32, 32), np.uint8))
    _, address = result_of(client, ("x.dcm", path.read_bytes()))
    monkeypatch.setattr("recap.service.download._write", fail)
    with suppress(MemoryError):
        assert client.get(f"{address}/result.dcm.zip").status_code in (422, 500)
    assert list((tmp_path / "data" / "incoming").iterdir()) == []


@pytest.mark.parametrize("anew", ["another bundle", "another calibration"])
def test_a_volume_is_not_finished_by_another_detector(volume, bundles, tmp_path, anew):
    """Killed in the middle, the service may start again with another bundle of that name, or with
    the same one, calibrated on volumes that were cut otherwise."""
    (tmp_path / "upload").mkdir()
    (tmp_path / "upload" / "000000.nii").write_bytes(volume)
    job = SimpleNamespace(id="1", bundle="brain", options={}, names={})
    first, other = map(recap.load, bundles)
    if anew == "another calibration":
        read = first.card.reading.model_copy(update={"window": "0,500"})
        calibration = first.card.calibration.model_copy(update={"reading": read})
        other = Detector(first.model, first.card.model_copy(update={"calibration": calibration}))
        assert other.card.fingerprint == first.card.fingerprint

    def killed(done):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_job(job, first, tmp_path, tmp_path / "first", killed)
    score_job(job, other, tmp_path, tmp_path / "second", lambda done: None)
    (case,) = json.loads((tmp_path / "second" / "result.json").read_text())["cases"]
    expected = other.score_case(tmp_path / "upload" / "000000.nii")
    assert case["image_scores"] == [image.score for image in expected.images]


@pytest.mark.parametrize("taken", [0, 1, 100])
def test_dicom_results_that_nobody_waits_for_leave_no_files(taken, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "report.dcm").write_bytes(bytes(2**20))
    blocks = _then_remove(folder)
    assert list(islice(blocks, taken)) or not taken
    # After the last block at once: the server may hold on to what it has sent for long.
    assert folder.exists() == (taken < 100)
    del blocks
    assert not folder.exists()
