"""Uploads to a service that stores no identity: what is cleaned, and what cannot be."""

import io
import zipfile
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL.PngImagePlugin import PngInfo

from recap.data.cases import find_cases
from recap.io import open_file, read_mask
from recap.service.deidentify import deidentify, deidentify_all
from recap.service.inspector import answer
from recap.service.placing import job_cases
from service_calls import API, ended, png, upload

pydicom = pytest.importorskip("pydicom")
dicom_files = pytest.importorskip("dicom_files")

SECRET = b"Doe"


@pytest.fixture
def hidden(make_client):
    return make_client(deidentify=True)


def pixels(seed=0):
    return np.random.default_rng(seed).integers(0, 900, (24, 20)).astype(np.int16)


def bare(implicit, little=True):
    """A data set alone, as some archives hand out: neither preamble nor meta header."""
    dataset = dicom_files.data_set(pixels(), PatientName="Doe^Jane")
    if not little:
        dataset.PixelData = pixels().astype(">i2").tobytes()
    stream = io.BytesIO()
    pydicom.dcmwrite(
        stream, dataset, implicit_vr=implicit, little_endian=little, enforce_file_format=False
    )
    return stream.getvalue()


@pytest.mark.parametrize(("implicit", "little"), [(True, True), (False, True), (False, False)])
def test_dicom_without_a_meta_header_is_cleaned_like_any_other(tmp_path, implicit, little):
    path = tmp_path / "x"
    path.write_bytes(bare(implicit, little))
    before = open_file(path).images[0].pixels
    deidentify(path)
    np.testing.assert_array_equal(open_file(path).images[0].pixels, before)
    assert SECRET not in path.read_bytes()


def damaged_dicom():
    """A whole file but for a number of one byte where there must be two."""
    return bytes(128) + b"DICM" + bare(implicit=False).replace(b"US\2\0", b"US\1\0", 1)


def stored(tmp_path):
    return b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_file_that_cannot_be_cleaned_is_a_case_with_an_error(hidden, tmp_path):
    files = [
        ("Doe.png", png(1)),
        ("Doe-damaged.png", png(2)[:-40]),
        ("Doe-no-image.png", b"Doe"),
        ("Doe-header.dcm", damaged_dicom()),
        ("Doe-bare", bare(implicit=True)),
        ("Doe-notes.txt", b"Doe"),
    ]
    job = ended(hidden, upload(hidden, *files))
    assert job["status"] == "done", job
    cases = hidden.get(f"{API}/jobs/{job['id']}/cases").json()
    assert sorted(case["status"] for case in cases) == ["error"] * 3 + ["ok"] * 2
    assert SECRET.decode() not in hidden.get(f"{API}/jobs/{job['id']}/result.json").text
    hidden.app.state.service.jobs.store.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    assert SECRET not in stored(tmp_path / "data")
    kept = (tmp_path / "data" / "jobs" / job["id"] / "upload").iterdir()
    assert sorted(path.name for path in kept) == ["000000.png", "000004"]


def test_an_upload_of_which_nothing_can_be_cleaned_is_refused(hidden, tmp_path):
    answer = upload(hidden, ("Doe.dcm", damaged_dicom()), ("Doe.png", png()[:-40]))
    assert answer.status_code == 422
    assert "000000.dcm: " in answer.text or "Doe.dcm: " in answer.text
    assert not list((tmp_path / "data" / "jobs").iterdir())


def test_a_key_is_of_one_upload_also_where_nothing_of_it_is_kept(hidden, tmp_path):
    def send(name, seed):
        files = {"file": (name, png(seed))}
        return hidden.post(f"{API}/jobs", files=files, headers={"Idempotency-Key": "Doe-1"})

    first, again = send("Doe.png", 1), send("Doe.png", 1)
    assert (first.status_code, first.json()) == (202, again.json())
    assert send("Doe.png", 2).status_code == send("Roe.png", 1).status_code == 422
    assert ended(hidden, first)["content"] == ""
    hidden.app.state.service.jobs.store.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    assert SECRET not in stored(tmp_path / "data")


def test_both_halves_of_a_pair_go_together(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    volume = nibabel.Nifti1Pair(np.zeros((4, 4, 3), np.int16), np.eye(4))
    nibabel.save(volume, tmp_path / "v.img")
    dicom_files.save_dicom(tmp_path / "w.dcm", pixels())
    failed = deidentify_all(tmp_path)
    assert [path.name for path in failed] == ["v.hdr"]
    assert [path.name for path in tmp_path.iterdir()] == ["w.dcm"]


@pytest.mark.parametrize("marked", [1, 255])
def test_masks_are_written_anew_too(tmp_path, marked):
    mask = np.zeros((40, 60), np.uint8)
    mask[5:20, 10:30] = marked
    told = PngInfo()
    told.add_text("PatientName", "Doe^Jane")
    stream = io.BytesIO()
    Pillow.fromarray(mask).save(stream, "PNG", pnginfo=told)
    files = {"normals": png(1), "abnormals": png(2), "masks": stream.getvalue()}
    (tmp_path / "raw").mkdir()
    for role, content in files.items():
        (tmp_path / "raw" / role).write_bytes(content)
    request = {
        "task": "fit",
        "folder": str(tmp_path),
        "files": [(role, "Doe.png", role, "000000.png") for role in files],
        "reading": {},
        "max_pixels": 10**9,
        "deidentify": True,
    }
    assert answer(request)["code"] == ""
    assert SECRET not in stored(tmp_path / "upload")
    written = read_mask(tmp_path / "upload" / "masks" / "000000.png")
    np.testing.assert_array_equal(written, mask > 0)


def test_a_table_of_contents_stays_one(tmp_path):
    """Else the DICOMDIR of every CD would be a case with an error."""
    content = dicom_files.item(FileSetID="DOE")
    directory = dicom_files.write(tmp_path / "DICOMDIR", content)
    read = pydicom.dcmread(directory)
    read.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.1.3.10"
    read.save_as(directory)
    deidentify(directory)
    meta = pydicom.dcmread(directory).file_meta
    assert meta.MediaStorageSOPClassUID == "1.2.840.10008.1.3.10"


def test_numbers_are_those_of_the_upload(make_client, tmp_path):
    """A client without names of its own knows its files by their order alone."""
    files = [
        ("a.png", png(1)[:-40]),  # found when it is cleaned, or decoded
        ("b.png", png(2)),
        ("c.dcm", bytes(128) + b"DICM" + bare(implicit=False)[:-700]),  # cut off in the pixels
        ("b.dcm", dicom_files.save_dicom(tmp_path / "b.dcm", pixels(3)).read_bytes()),
    ]
    expected = [(0, "error"), (1, "ok"), (2, "error"), (3, "ok")]
    for hide in (False, True):
        client = make_client(data=tmp_path / f"hidden-{hide}", deidentify=hide)
        job = ended(client, upload(client, *files))
        address = f"{API}/jobs/{job['id']}"
        cases = client.get(f"{address}/cases").json()
        assert [(case["id"], case["status"]) for case in cases] == expected
        names = [f"case-{n}" for n in range(1, 5)] if hide else [name for name, _ in files]
        assert [case["name"] for case in cases] == names
        shown = client.get(f"{address}/cases/{names[1]}/image/0.png").content
        assert Pillow.open(io.BytesIO(shown)).tobytes() == Pillow.open(io.BytesIO(png(2))).tobytes()
        # What is read anew from the upload is the same case's file.
        place = {"x": 0, "y": 23}  # the picture is 24 pixels high
        assert client.get(f"{address}/cases/3/nearest", params=place).status_code == 200
        if find_spec("highdicom"):
            answer = client.get(f"{address}/result.dcm.zip")
            assert "case-00003" in str(zipfile.ZipFile(io.BytesIO(answer.content)).namelist())


def test_cases_keep_the_numbers_that_they_had_in_the_upload(tmp_path):
    for number in range(2):
        (tmp_path / f"{number:06d}.png").write_bytes(png(number))
    job = SimpleNamespace(options={"problems": [["bad.png", "damaged", 1]]})
    assert list(job_cases(job, tmp_path)) == [0, 2]


@pytest.mark.parametrize("uids", ["the same", "empty", "none"])
def test_two_patients_under_the_same_uids_do_not_become_one_volume(tmp_path, uids):
    for number, patient in enumerate(("A", "B")):
        slices = np.stack([pixels(10 * number + n) for n in range(3)])
        for file in dicom_files.save_series(tmp_path / patient, slices, PatientID=patient):
            dataset = pydicom.dcmread(file)
            x, y, z = dataset.ImagePositionPatient
            dataset.ImagePositionPatient = [x, y, z + 6 * number]  # on top of each other
            for keyword in ("StudyInstanceUID", "SeriesInstanceUID"):
                if uids == "empty":
                    setattr(dataset, keyword, "")
                elif uids == "none":
                    delattr(dataset, keyword)
            dataset.save_as(tmp_path / f"{patient}{file.name}.dcm")
            file.unlink()
        (tmp_path / patient).rmdir()
    assert deidentify_all(tmp_path) == {}
    cases = find_cases([tmp_path], tmp_path).cases
    assert [len(case.files) for case in cases] == [3, 3]
