"""One door for all formats: the right reader, and the right words when there is none."""

import gzip
import zipfile

import numpy as np
import pytest
from PIL import Image as PillowImage

import recap
from dicom_files import place, save_dicom, save_series
from recap.config import ReadingSettings
from recap.errors import InputError
from recap.io import open_file, read_image
from slide_files import PINK, blank, write_slide
from volume_files import write_nifti, write_nrrd

GREY = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5
CUBE = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
RAS = np.diag([1.0, 2.0, 3.0, 1.0])


def png(path):
    PillowImage.fromarray(GREY).save(path, "PNG")
    return path


def dicom(path, **tags):
    return save_dicom(path, GREY, Modality="DX", WindowCenter=128, WindowWidth=256, **tags)


@pytest.mark.parametrize("name", ["a.png", "a.dcm", "a.nii.gz", "a.svs", "a"])
def test_a_png_under_any_name(name, tmp_path):
    path = png(tmp_path / name)
    image = read_image(path)
    assert np.array_equal(image.pixels, (GREY / np.float32(255)).astype(np.float32))
    case = open_file(str(path))
    assert (case.kind, case.source, len(case.images), case.grid) == ("image", str(path), 1, None)
    assert np.array_equal(case.images[0].pixels, image.pixels)


@pytest.mark.parametrize("name", ["a.dcm", "a.png", "a.jpg", "1.2.840.10008"])
def test_a_dicom_file_under_any_name(name, tmp_path):
    image = read_image(dicom(tmp_path / name, PixelSpacing=[0.5, 0.25]))
    assert np.allclose(image.pixels, GREY / 255, atol=1e-6)
    assert image.geometry.spacing_mm == (0.5, 0.25)
    assert image.identity.patient == "P1"
    assert recap.read_image is read_image


def test_a_window_and_an_axis_reach_the_reader(tmp_path):
    reading = ReadingSettings(window="10,50", axis="coronal")
    for path in (
        write_nifti(tmp_path / "a.nii.gz", CUBE, RAS),
        write_nrrd(tmp_path / "a.nrrd", CUBE, RAS),
    ):
        case = open_file(path, reading)
        assert (case.kind, len(case.images), case.grid.shape) == ("volume", 4, CUBE.shape)
        # Slices from front to back, rows from head to feet, columns from right to left.
        expected = np.clip((CUBE[::-1, -1, ::-1].T - 10) / 40, 0, 1)
        assert np.allclose(case.images[0].pixels, expected, atol=1e-6)
    image = read_image(dicom(tmp_path / "a.dcm"), reading)
    assert np.allclose(image.pixels, np.clip((GREY - 10.0) / 40, 0, 1), atol=1e-6)


def test_frames_of_one_file(tmp_path):
    path = save_dicom(tmp_path / "clip", np.stack([GREY, GREY[::-1]]), Modality="US")
    case = open_file(path)
    assert (case.kind, len(case.images)) == ("frames", 2)
    with pytest.raises(InputError, match=r"clip: holds 2 images, not one.*recap score"):
        read_image(path)


def test_a_volume_of_one_slice_is_one_image(tmp_path):
    path = write_nifti(tmp_path / "a.nii", CUBE[:, :, :1], RAS)
    assert read_image(path, ReadingSettings(window="0,60")).size_hw == (4, 3)
    with pytest.raises(InputError, match="holds 5 images"):
        read_image(write_nifti(tmp_path / "b.nii", CUBE, RAS))


def test_one_slice_of_a_series_is_an_image(tmp_path):
    path = save_series(tmp_path, np.stack([GREY, GREY]).astype(np.int16))[0]
    assert open_file(path).kind == "image"
    assert read_image(path).geometry.orientation == "SPL"
    alone = dicom(tmp_path / "a", **place((1, 2, 3)))
    assert read_image(alone).geometry.affine_ras[:3, 3].tolist() == [-1, -2, 3]


@pytest.mark.parametrize("half", ["a.hdr", "a.img"])
def test_either_half_of_a_pair(half, tmp_path):
    write_nifti(tmp_path / "a.hdr", CUBE, RAS)
    case = open_file(tmp_path / half, ReadingSettings(window="0,60"))
    assert np.allclose(case.images[2].pixels, CUBE[::-1, ::-1, 2].T / 60, atol=1e-6)


def test_a_slide(tmp_path):
    pixels = blank(300, 400)
    pixels[50:200, 50:300] = PINK
    path = write_slide(tmp_path / "a.dcm", pixels)
    case = open_file(path, ReadingSettings(slide_tile_px=64))
    assert (case.kind, case.size_hw) == ("slide", (300, 400))
    assert case.images[0].size_hw == (64, 64)


def test_a_packed_nrrd(tmp_path):
    path = write_nrrd(tmp_path / "a.nrrd", CUBE, RAS)
    packed = tmp_path / "a.nrrd.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert np.array_equal(open_file(packed).images[1].pixels, open_file(path).images[1].pixels)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.png", "not an image that can be read"),
        ("a", "not an image that can be read"),
        ("a.dcm", "not a DICOM file"),
        ("a.IMA", "not a DICOM file"),
        ("a.nii", "not a NIfTI file"),
        ("a.nii.gz", "not a NIfTI file"),
        ("a.hdr", "not a NIfTI file"),
        ("a.nrrd", "not an NRRD file"),
        ("a.svs", "not a slide"),
    ],
)
@pytest.mark.parametrize("content", [b"nonsense " * 30, b"\0" * 1000])
def test_what_no_reader_takes_is_told_by_the_one_it_is_named_for(name, words, content, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    for read in (read_image, open_file):
        with pytest.raises(InputError, match=words) as error:
            read(path)
        assert str(error.value).startswith(str(path))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["a.png", "a.dcm", "a.nii.gz", "a.nrrd", "a.svs", "a.hdr", "a"])
def test_an_empty_file_says_that_it_is_empty(name, tmp_path):
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=f"{name}: the file is empty"):
        read_image(tmp_path / name)


def test_a_file_cut_short(tmp_path):
    for path in (
        write_nifti(tmp_path / "a.nii.gz", CUBE, RAS),
        write_nrrd(tmp_path / "a.nrrd", CUBE, RAS),
        dicom(tmp_path / "a.dcm"),
        png(tmp_path / "a.png"),
    ):
        data = path.read_bytes()
        for keep in (len(data) * 2 // 3, len(data) // 2, 20, 3):
            path.write_bytes(data[:keep])
            with pytest.raises(InputError, match=path.name) as error:
                open_file(path).images[0]
            assert "\n" not in str(error.value)


def test_what_is_not_there(tmp_path):
    with pytest.raises(InputError, match="nowhere: there is no such file"):
        open_file(tmp_path / "nowhere")
    with pytest.raises(InputError, match="this is a folder"):
        read_image(tmp_path)


def test_an_archive_is_to_be_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.png", "w") as archive:
        archive.writestr("b.png", b"")
    with pytest.raises(InputError, match=r"a\.png: a zip archive may hold many images"):
        open_file(tmp_path / "a.png")
