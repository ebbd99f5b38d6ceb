"""A case of something else than the detector knows is marked, of whatever kind it is.

Wherever results are read: in the tables, on the page, in what the command says and in DICOM; also
where nothing can be decided. What is like the known images is not marked.
"""

import csv

import numpy as np
import pytest
from PIL import Image as PillowImage

import recap
from dicom_files import save_dicom, save_series
from recap.data import write_phantoms
from volume_files import write_nifti, write_nrrd

nibabel = pytest.importorskip("nibabel")


@pytest.fixture(scope="module")
def brain(tmp_path_factory):
    """Phantoms of more and less contrast: volumes are windowed, pictures are not."""
    root = tmp_path_factory.mktemp("phantoms")
    (brain,) = write_phantoms(root, pool=12, test=6, size_px=70, domains=["Brain"])
    for number, file in enumerate(images_of(brain, "valid", "*")):
        pixels = np.asarray(PillowImage.open(file).convert("L"), float)
        contrast = 0.6 + 0.25 * (number % 12)
        PillowImage.fromarray(np.clip(contrast * pixels, 0, 255).astype(np.uint8)).save(file)
    return brain


def images_of(brain, split, kind):
    return sorted((brain.root / split).glob(f"{kind}/img/*"))


@pytest.fixture(scope="module")
def brain_slices(brain):
    """(N, H, W): phantom slices that the detector has not seen."""
    files = images_of(brain, "test", "good")
    return np.stack([np.asarray(PillowImage.open(file).convert("L")) for file in files])


def noise(count, seed=0):
    """(N, H, W): no anatomy at all."""
    return np.random.default_rng(seed).integers(0, 256, (count, 70, 70), np.uint8)


def with_ends(slices):
    """Two empty slices at each end, as scanners give them."""
    empty = np.zeros((2, *slices.shape[1:]), slices.dtype)
    return np.concatenate([empty, slices, empty])


def write_cases(folder, slices, name):
    """One case of every kind that takes no further package, all of the same slices."""
    PillowImage.fromarray(slices[0]).save(folder / f"{name}.png")
    save_dicom(folder / f"{name}-clip.dcm", slices, Modality="US")
    stored = with_ends(slices).transpose(2, 1, 0)[::-1, ::-1]
    write_nifti(folder / f"{name}.nii.gz", stored.astype(np.int16), np.diag([1.0, 1, 3, 1]))
    write_nrrd(folder / f"{name}.nrrd", stored.astype(np.int16), np.diag([1.0, 1, 3, 1]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, brain_slices):
    root = tmp_path_factory.mktemp("cases")
    write_cases(root, brain_slices, "brain")
    write_cases(root, noise(8), "noise")
    return root


@pytest.fixture(scope="module")
def detectors(tmp_path_factory, brain, tiny_folder):
    """One is calibrated on pictures; the other has one normal image, too few for any threshold."""
    settings = recap.resolve_settings(
        encoder={"name": str(tiny_folder), "input_px": 70},
        training={"epochs": 1, "augment": False},
    )
    normal, abnormal = (images_of(brain, "valid", kind) for kind in ("good", "Ungood"))
    few, one = (recap.fit(normal[:n], abnormal, settings=settings) for n in (2, 1))
    assert one.card.calibration is None
    root = tmp_path_factory.mktemp("bundles")
    recap.calibrate(few, normal[2:], fpr=0.2).detector.save(root / "calibrated.recap")
    one.save(root / "uncalibrated.recap")
    return root


def table_of(out):
    with (out / "scores.csv").open(newline="") as file:
        return {row["case"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("name", ["calibrated", "uncalibrated"])
def test_every_kind_of_case_is_marked(name, detectors, folder, command, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "out"
    done = command(
        "score", detectors / f"{name}.recap", folder, "--out", out, "--report", "--parquet"
    )
    assert done.code == 0, done.err
    rows = table_of(out)
    assert {row["kind"] for row in rows.values()} == {"image", "frames", "volume"}
    typed = {row["case"]: row for row in parquet.read_table(out / "scores.parquet").to_pylist()}
    page = (out / "report.html").read_text()
    for case, row in rows.items():
        foreign = case.startswith("noise")
        assert row["in_domain"] == ("no" if foreign else "yes"), row
        assert typed[case]["in_domain"] is not foreign
        assert (row["decision"] == "out-of-domain") == foreign
        assert row["rule"].startswith("OUT OF DOMAIN") == foreign
        if (
            row["kind"] != "image" or name == "uncalibrated"
        ):  # nothing can be decided, and why is told
            assert "no decision" in row["rule"]
            assert row["p_value"] == ""
    assert page.count("data-state='out-of-domain'") == 4
    assert "4 out-of-domain" in done.out


def test_a_slide_is_marked(detectors, command, tmp_path):
    pytest.importorskip("openslide")
    pytest.importorskip("tifffile")
    from slide_files import PINK, blank, write_slide

    pixels = blank(1100, 1100)
    rng = np.random.default_rng(0)
    pixels[40:1060, 40:1060] = np.clip(rng.normal(PINK, 40, (1020, 1020, 3)), 0, 255)
    write_slide(tmp_path / "s.tiff", pixels)
    done = command(
        "score", detectors / "calibrated.recap", tmp_path / "s.tiff", "--out", tmp_path / "out"
    )
    assert done.code == 0, done.err
    row = table_of(tmp_path / "out")["s.tiff"]
    assert (row["kind"], row["in_domain"], row["decision"]) == ("slide", "no", "out-of-domain")


def test_reports_of_dicom_series_say_it(detectors, brain_slices, command, tmp_path):
    pytest.importorskip("highdicom")
    import pydicom

    series = {"brain": with_ends(brain_slices), "noise": with_ends(noise(8))}
    for name, stack in series.items():
        places = {"SeriesInstanceUID": f"1.2.3.{len(name)}.{ord(name[0])}"}
        more = {"FrameOfReferenceUID": "1.2.826.0.1.3680043.8.498.9", "Modality": "MR"}
        save_series(tmp_path / "in" / name, stack.astype(np.int16), **places, **more)
    out = tmp_path / "out"
    done = command(
        "score", detectors / "calibrated.recap", tmp_path / "in", "--out", out, "--dicom"
    )
    assert done.code == 0, done.err
    for case, row in table_of(out).items():
        said = pydicom.dcmread(out / row["dicom"] / "report.dcm").to_json()
        assert ("out-of-domain" in said) == case.startswith("noise")
        assert ("in-domain" in said) == case.startswith("brain")
        assert ("OUT OF DOMAIN" in said) == case.startswith("noise")
