"""Fitting, calibrating and de-identifying through the service."""

import gzip
import io
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from fastapi import HTTPException

import recap
from recap.data.folder import list_images
from recap.errors import BundleError
from recap.scoring.calibration import calibrate_scores
from recap.service.bundles import Bundles
from recap.service.deidentify import deidentify
from recap.service.settings import ServerSettings
from recap.service.store import Store
from service_calls import API, ended, png, upload


@pytest.fixture
def folders(domains):
    valid, test = domains[0].root / "valid", domains[0].root / "test"
    return {
        "normals": list_images(valid / "good" / "img"),
        "abnormals": list_images(valid / "Ungood" / "img"),
        "masks": list_images(valid / "Ungood" / "anomaly_mask"),
        "held-out": list_images(test / "good" / "img"),
    }


def form(folders, *roles, **renamed):
    return [
        (role, (path.name, path.read_bytes()))
        for role in roles
        for path in folders[renamed.get(role, role)]
    ]


def fit(client, files, **options):
    given = {"name": "mine", "epochs": 1, "augment": False} | options
    return client.post(f"{API}/fits", files=files, data={"options": json.dumps(given)})


def test_a_fit_is_that_of_the_library(client, folders, bundles, tmp_path):
    files = form(folders, "normals", "abnormals", "masks")
    job = ended(client, fit(client, files))
    assert (job["status"], job["result"]) == ("done", {"bundle": "mine"})
    mine = client.get(f"{API}/bundles").json()[-1]
    assert (mine["name"], mine["made_here"], mine["mode"]) == ("mine", True, "few-shot")
    assert not mine["support_pictures"]  # unless asked for
    with zipfile.ZipFile(
        io.BytesIO(client.get(f"{API}/bundles/mine/download.zip").content)
    ) as archive:
        archive.extractall(tmp_path / "mine.recap")
    settings = recap.load(bundles[0]).card.settings
    expected = recap.fit(
        folders["normals"], folders["abnormals"], folders["masks"][0].parent, settings=settings
    )
    image = folders["held-out"][0]
    assert recap.load(tmp_path / "mine.recap").score(image).score == expected.score(image).score


def test_a_fitted_bundle_scores_and_shows_its_support(client, folders):
    files = form(folders, "normals", "abnormals") + form(folders, "masks")[:1]
    assert ended(client, fit(client, files, keep_thumbnails=True))["status"] == "done"
    job = ended(client, upload(client, png(), bundle="mine"))
    assert (job["status"], job["bundle"]) == ("done", "mine")
    assert client.get(f"{API}/bundles/mine/support/2.png").status_code == 200
    assert client.get(f"{API}/bundles/mine/support/6.png").status_code == 404
    assert client.get(f"{API}/bundles/brain/support/0.png").status_code == 404
    assert fit(client, files).status_code == 409
    assert client.delete(f"{API}/bundles/mine").status_code == 204
    assert client.delete(f"{API}/bundles/brain").status_code == 404
    assert [each["name"] for each in client.get(f"{API}/bundles").json()] == ["brain", "chest"]
    late = upload(client, png(), bundle="mine")
    assert late.status_code == 422


def test_why_a_place_looks_abnormal(client, folders, tmp_path):
    from recap.scoring.explain import explain

    fitted = ended(client, fit(client, form(folders, "normals"), keep_thumbnails=True))
    assert fitted["status"] == "done"
    job = ended(client, upload(client, png(5), bundle="mine"))
    address = f"{API}/jobs/{job['id']}/cases/0/nearest"
    found = client.get(address, params={"x": 50, "y": 7}).json()
    (tmp_path / "same.png").write_bytes(png(5))
    detector = client.app.state.service.bundles.detector("mine")
    expected = explain(detector, tmp_path / "same.png", (50, 7))
    assert found["distance"] == expected.nearest.distance
    assert found["index"] == expected.nearest.origin.support
    assert [found["x"], found["y"]] == list(expected.nearest.origin.xy_px)
    assert sum(part["amount"] for part in found["parts"]) == pytest.approx(found["map_value"])
    assert client.get(f"{API}/bundles/mine/support/{found['index']}.png").status_code == 200
    assert client.get(address, params={"x": 60, "y": 7}).status_code == 422  # outside
    assert client.get(address, params={"x": 1, "y": 1, "image": 1}).status_code == 404
    assert client.get(address).status_code == 422


def test_a_fitted_bundle_survives_a_restart(make_client, folders):
    client = make_client()
    assert ended(client, fit(client, form(folders, "normals")))["status"] == "done"
    client.__exit__(None, None, None)
    again = make_client()
    assert ended(again, upload(again, png(), bundle="mine"))["status"] == "done"


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"name": "../x"}, 422),
        ({"name": "brain"}, 409),
        ({"preset": "slow"}, 422),
        ({"epochs": 0}, 422),
        ({"encoder_of": "none"}, 422),
        ({"encoder": "/etc"}, 422),
        ({"seed": -1}, 422),
    ],
)
def test_options_are_checked(client, folders, options, status):
    assert fit(client, form(folders, "normals"), **options).status_code == status


@pytest.mark.parametrize("options", ["[]", "{", '"x"', "1", "[" * 5000])
def test_options_are_an_object(client, folders, options):
    files = form(folders, "normals")
    answer = client.post(f"{API}/fits", files=files, data={"options": options})
    assert answer.status_code == 422


def test_support_files_are_checked(client, folders):
    normals = form(folders, "normals")
    image, mask = form(folders, "abnormals")[0], form(folders, "masks")[0]
    wrong = {
        "no normals": [image],
        "an orphan": [*normals, mask],
        "another field": [*normals, ("other", ("a.png", png()))],
        "another size": [*normals, image, ("masks", (image[1][0], png()))],
        "two masks": [*normals, image, mask, ("masks", ("again.png", png())), mask],
        "damaged": [*normals, ("abnormals", ("a.png", png()[:-30]))],
        "unknown": [*normals, ("abnormals", ("a.png", b"text"))],
    }
    for what, files in wrong.items():
        assert fit(client, files).status_code in (415, 422), what


def test_a_mask_that_is_a_volume_is_told(client, folders):
    nibabel = pytest.importorskip("nibabel")
    image = form(folders, "abnormals")[0]
    volume = nibabel.Nifti1Image(np.zeros((4, 4, 2), np.uint8), np.eye(4)).to_bytes()
    name = f"{Path(image[1][0]).stem}.nii.gz"
    files = [*form(folders, "normals"), image, ("masks", (name, gzip.compress(volume)))]
    answer = fit(client, files)
    assert answer.status_code == 422
    assert name in answer.json()["detail"]


def test_calibrating_a_served_bundle_leaves_its_folder_alone(make_client, folders, bundles):
    client = make_client()
    before = (bundles[1] / "bundle.json").read_bytes()
    files = [("normals", (f"{n}.png", png(n))) for n in range(4)]
    data = {"options": json.dumps({"fpr": 0.25})}
    answer = client.post(f"{API}/bundles/chest/calibrate", files=files, data=data)
    job = ended(client, answer)
    assert (job["status"], job["result"]) == ("done", {"bundle": "chest"}), job
    assert (bundles[1] / "bundle.json").read_bytes() == before
    client.__exit__(None, None, None)
    again = make_client()
    (chest,) = [b for b in again.get(f"{API}/bundles").json() if b["name"] == "chest"]
    assert (chest["calibration"]["source"], chest["calibration"]["fpr"]) == ("held-out", 0.25)
    done = ended(again, upload(again, png(9), bundle="chest"))
    (case,) = again.get(f"{API}/jobs/{done['id']}/cases").json()
    assert 0 < case["decision"]["p_value"] <= 1
    assert case["level"] == chest["calibration"]["map_level"]
    assert again.delete(f"{API}/bundles/chest").status_code == 204
    assert len(again.get(f"{API}/bundles").json()) == 2


def test_too_few_images_to_calibrate_is_told(client):
    files = [("normals", ("a.png", png(1)))]
    job = ended(client, client.post(f"{API}/bundles/chest/calibrate", files=files))
    assert job["status"] == "failed"
    assert "normal" in job["error"]


def test_deidentified_uploads_keep_no_name(make_client, tmp_path):
    pytest.importorskip("pydicom")
    from dicom_files import save_dicom

    pixels = np.random.default_rng(0).integers(0, 4000, (20, 24)).astype(np.int16)
    tags = {"PatientName": "Doe^Jane", "PatientBirthDate": "19700101", "StudyDescription": "Doe"}
    path = save_dicom(tmp_path / "x.dcm", pixels, PixelSpacing=[0.5, 0.25], **tags)
    plain = make_client(data=tmp_path / "plain")
    hidden = make_client(data=tmp_path / "hidden", deidentify=True)
    jobs = [ended(c, upload(c, ("Doe.dcm", path.read_bytes()))) for c in (plain, hidden)]
    cases = [
        c.get(f"{API}/jobs/{job['id']}/cases").json()[0]
        for c, job in zip((plain, hidden), jobs, strict=True)
    ]
    assert cases[0]["score"] == cases[1]["score"]
    assert cases[1]["spacing_mm"] == [0.5, 0.25]
    assert (cases[0]["name"], cases[1]["name"]) == ("Doe.dcm", "case-1")
    hidden.app.state.service.jobs.store.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    stored = b"".join(p.read_bytes() for p in (tmp_path / "hidden").rglob("*") if p.is_file())
    for secret in (b"Doe", b"1970", b"P1", b".498.1.1"):
        assert secret not in stored


def test_cleaned_files_hold_the_same_image(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    from PIL import Image, PngImagePlugin

    from recap.io import open_file

    note = PngImagePlugin.PngInfo()
    note.add_text("Patient", "Doe")
    grey = np.random.default_rng(0).integers(0, 65536, (9, 7)).astype(np.uint16)
    Image.fromarray(grey).save(tmp_path / "grey.png", pnginfo=note)
    colour = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    Image.fromarray(colour).save(tmp_path / "colour.png", pnginfo=note)
    for name, kind in (("v.nii.gz", nibabel.Nifti1Image), ("w.nii", nibabel.Nifti2Image)):
        voxels = np.random.default_rng(1).integers(0, 99, (5, 4, 3)).astype(np.int16)
        volume = kind(voxels, np.diag([1, 2, 3, 1.0]))
        volume.header["descrip"], volume.header["aux_file"] = b"Doe", b"Doe"
        volume.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"Doe"))
        (tmp_path / name).write_bytes(b"")
        nibabel.save(volume, tmp_path / name)
    header = b"NRRD0004\n# Doe\ntype: uint8\ndimension: 3\nsizes: 2 2 2\nencoding: raw\n"
    (tmp_path / "x.nrrd").write_bytes(header + b"content: Doe\nName:=Doe\n\n" + bytes(range(8)))
    for path in sorted(tmp_path.iterdir()):
        before = open_file(path)
        images = [image.pixels for image in before.images]
        deidentify(path)
        after = open_file(path)
        np.testing.assert_array_equal(images, [image.pixels for image in after.images])
        if before.grid is not None:
            np.testing.assert_array_equal(before.grid.affine_ras, after.grid.affine_ras)
        content = path.read_bytes()
        if path.name.endswith(".gz"):
            import gzip

            content = gzip.decompress(content)
        assert b"Doe" not in content, path.name


def test_a_bundle_that_is_replaced_while_it_is_served_decides_as_it_says(bundles, tmp_path):
    """`recap calibrate` on the folder of a running service."""
    folder = shutil.copytree(bundles[0], tmp_path / "brain.recap")
    store = Store(tmp_path / "data")
    served = Bundles(ServerSettings(bundles=(folder,), data=store.root), store)
    first = served.detector("brain")
    assert served.detector("brain") is first
    calibration = calibrate_scores([0.1, 0.2, 0.3], [0.4, 0.5, 0.6], fpr=0.5)
    first.calibrated(calibration).save(folder, keep=folder)
    now = served.detector("brain")
    assert now.card.calibration == served.card("brain").calibration == calibration
    assert now.model.encoder is first.model.encoder
    # Another detector under the name has no part in the results of the first.
    served.refuse_other("brain", first.card.fingerprint)
    with pytest.raises(HTTPException, match="not served any more"):
        served.refuse_other("brain", recap.load(bundles[1]).card.fingerprint)
    store.close()


@pytest.mark.parametrize("name", ["support/000000.png", "notes.txt"])
def test_a_bundle_gives_no_files_of_the_host(name, make_client, bundles, tmp_path):
    """A stranger's bundle with a link in it: not served at the start, nor if it comes later."""
    (tmp_path / "secret").write_text("of the host")
    planted = shutil.copytree(bundles[0], tmp_path / "planted.recap") / name
    planted.parent.mkdir(exist_ok=True)
    client = make_client(bundles=(tmp_path / "planted.recap",))
    planted.symlink_to(tmp_path / "secret")
    for address in ("support/0.png", "download.zip"):
        answer = client.get(f"{API}/bundles/planted/{address}")
        assert answer.status_code in (404, 422)
        assert b"of the host" not in answer.content
    assert client.get(f"{API}/bundles/planted/download.zip").status_code == 422
    client.__exit__(None, None, None)
    with pytest.raises(BundleError, match="is a link"):
        make_client(bundles=(tmp_path / "planted.recap",), data=tmp_path / "other")
