"""Formats are told by content; names count only where content cannot tell."""

import gzip
import os
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PillowImage

from dicom_files import save_dicom
from recap.data.cases import find_cases
from recap.data.folder import list_images
from recap.errors import InputError
from recap.io import formats
from recap.io.decoding import one_line_errors
from recap.io.formats import read_image, sniff
from recap.io.nifti import nifti_pair
from slide_files import PINK, blank, write_slide
from volume_files import write_nifti, write_nrrd

GREY = np.arange(48, dtype=np.uint8).reshape(6, 8)
CUBE = np.arange(60, dtype=np.int16).reshape(3, 4, 5)


def picture(kind, **options):
    stream = BytesIO()
    PillowImage.fromarray(GREY).save(stream, kind, **options)
    return stream.getvalue()


def in_zip():
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.png", b"")
    return stream.getvalue()


def written(write, suffix):
    """What a writer of files writes, as bytes."""

    def make(folder):
        path = folder / f"made{suffix}"
        write(path)
        data = path.read_bytes()
        path.unlink()
        return data

    return make


def slide(path):
    pixels = blank(300, 400)
    pixels[50:200, 50:300] = PINK
    write_slide(path, pixels)


MAKERS = {
    "png": ("raster", lambda folder: picture("PNG")),
    "jpeg": ("raster", lambda folder: picture("JPEG")),
    "tiff": ("raster", lambda folder: picture("TIFF")),
    "big tiff": ("raster", lambda folder: picture("TIFF", big_tiff=True)),
    "bmp": ("raster", lambda folder: picture("BMP")),
    "webp": ("raster", lambda folder: picture("WEBP")),
    "dicom": ("dicom", written(lambda path: save_dicom(path, GREY), ".dcm")),
    "nifti": ("nifti", written(lambda path: write_nifti(path, CUBE, np.eye(4)), ".nii")),
    "nifti 2": (
        "nifti",
        written(lambda path: write_nifti(path, CUBE, np.eye(4), version=2), ".nii"),
    ),
    "big-endian nifti": (
        "nifti",
        written(lambda path: write_nifti(path, CUBE, np.eye(4), big_endian=True), ".nii"),
    ),
    "packed nifti": ("nifti", written(lambda p: write_nifti(p, CUBE, np.eye(4)), ".nii.gz")),
    "nrrd": ("nrrd", written(lambda path: write_nrrd(path, CUBE, np.eye(4)), ".nrrd")),
    "slide": ("slide", written(slide, ".tif")),
    "zip": ("zip", lambda folder: in_zip()),
    "text": ("unknown", lambda folder: b"BMI,age\n23,50\n"),
    "little": ("unknown", lambda folder: b"BM"),
    "empty": ("unknown", lambda folder: b""),
    "packed text": ("unknown", lambda folder: gzip.compress(b"hello" * 200)),
    "cut gzip": ("unknown", lambda folder: gzip.compress(bytes(999))[:12]),
}
NAMES = ["a", "a.png", "a.dcm", "a.nii.gz", "a.nrrd", "a.svs", "a.tif", "a.zip", "a.txt", "1.2.840"]


@pytest.mark.parametrize("name", MAKERS)
def test_every_format_under_every_name(name, tmp_path):
    expected, make = MAKERS[name]
    data = make(tmp_path)
    seen = {}
    for file in NAMES:
        (tmp_path / file).write_bytes(data)
        seen[file] = sniff(tmp_path / file)
    assert seen == dict.fromkeys(NAMES, expected)


def test_every_bmp_header_is_known(tmp_path):
    """The long header is Pillow's own way; the old and short one is OS/2's."""
    data = picture("BMP")
    short = data[:14] + (12).to_bytes(4, "little") + bytes(100)
    for content in (data, short):
        (tmp_path / "a").write_bytes(content)
        assert sniff(tmp_path / "a") == "raster"


def test_a_packed_nrrd(tmp_path):
    path = write_nrrd(tmp_path / "a.nrrd", CUBE, np.eye(4))
    (tmp_path / "a.nrrd.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert sniff(tmp_path / "a.nrrd.gz") == "nrrd"


def test_a_dicom_file_that_is_a_tiff_as_well(tmp_path):
    path = save_dicom(tmp_path / "dual.tif", GREY)
    data = path.read_bytes()
    path.write_bytes(b"II*\0" + data[4:])
    assert sniff(path) == "dicom"


def test_a_dicom_file_without_its_preamble(tmp_path):
    path = save_dicom(tmp_path / "IM1", GREY)
    path.write_bytes(path.read_bytes()[132:])
    assert sniff(path) == "dicom"


@pytest.mark.parametrize("suffix", [".mrxs", ".MRXS", ".vms", ".czi"])
def test_slides_that_only_their_name_tells(suffix, tmp_path):
    """The main file of a MIRAX slide is a small JPEG."""
    for data in (picture("JPEG"), b"ZISRAWFILE", b"[Virtual Microscope Specimen]"):
        (tmp_path / f"a{suffix}").write_bytes(data)
        assert sniff(tmp_path / f"a{suffix}") == "slide"


def test_a_pyramid_is_a_picture_where_there_is_no_openslide(tmp_path, monkeypatch):
    slide(tmp_path / "a.tif")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert sniff(tmp_path / "a.tif") == "raster"


def test_both_halves_of_a_pair(tmp_path):
    header = write_nifti(tmp_path / "a.hdr", CUBE, np.eye(4))
    voxels = tmp_path / "a.img"
    assert (sniff(header), sniff(voxels)) == ("nifti", "nifti")
    assert nifti_pair(header) == nifti_pair(voxels) == (header, voxels)
    voxels.rename(tmp_path / "b.img")
    assert (sniff(header), sniff(tmp_path / "b.img")) == ("nifti", "unknown")
    assert nifti_pair(header) is nifti_pair(tmp_path / "b.img") is None


@pytest.mark.parametrize(("header", "voxels"), [("a.HDR", "a.IMG"), ("a.hdr.gz", "a.img.gz")])
def test_halves_in_capitals_and_packed(header, voxels, tmp_path):
    write_nifti(tmp_path / "x.hdr", CUBE, np.eye(4))
    for old, new in (("x.hdr", header), ("x.img", voxels)):
        data = (tmp_path / old).read_bytes()
        (tmp_path / new).write_bytes(gzip.compress(data) if new.endswith(".gz") else data)
    expected = (tmp_path / header, tmp_path / voxels)
    assert nifti_pair(tmp_path / header) == nifti_pair(tmp_path / voxels) == expected


def test_what_only_looks_like_a_pair(tmp_path):
    (tmp_path / "a.hdr").write_bytes(b"#?RADIANCE\n")
    (tmp_path / "a.img").write_bytes(bytes(100))
    assert (sniff(tmp_path / "a.hdr"), sniff(tmp_path / "a.img")) == ("unknown", "unknown")
    # A whole volume that somebody named .img is no half of anything.
    write_nifti(tmp_path / "b.hdr", CUBE, np.eye(4))
    write_nifti(tmp_path / "b.nii", CUBE, np.eye(4)).rename(tmp_path / "b.img")
    assert nifti_pair(tmp_path / "b.img") is None
    assert sniff(tmp_path / "b.img") == "nifti"


def test_what_is_no_file(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.png: there is no such file"):
        sniff(tmp_path / "nowhere.png")
    with pytest.raises(InputError, match="this is a folder, not a file"):
        sniff(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_link_that_leads_nowhere_says_where_to(tmp_path):
    (tmp_path / "a.png").symlink_to("gone/b.png")
    with pytest.raises(InputError, match=r"a\.png: this is a link that leads nowhere, to gone/b"):
        sniff(tmp_path / "a.png")
    with (
        pytest.raises(InputError, match=r"leads nowhere, to gone/b\.png"),
        one_line_errors(tmp_path / "a.png", "volume"),
    ):
        (tmp_path / "a.png").read_bytes()


@pytest.mark.skipif(os.name != "posix", reason="needs pipes")
def test_pipes_and_devices_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError, match="neither a file nor a folder"):
            sniff(path)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(picture("PNG"))

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(formats.Path, "open", refuse)
    with pytest.raises(InputError, match=r"a\.png: cannot be read \(Permission denied\)"):
        sniff(tmp_path / "a.png")


@given(st.binary(max_size=700))
def test_any_bytes_have_an_answer(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    known = ("raster", "dicom", "nifti", "nrrd", "slide", "zip", "unknown")
    assert sniff(path) in known


READER = """
import numpy as np

from recap.io.case import Case
from recap.io.formats import FileFormat
from recap.types import Image


def read_toy(path, reading):
    rows = [[int(digit) for digit in line] for line in path.read_text().splitlines()[1:]]
    return Case("image", str(path), [Image(np.array(rows, np.float32) / 9, str(path))])


TOY = FileFormat(
    name="toy",
    title="toys",
    suffixes=(".toy",),
    read=read_toy,
    starts=lambda head, path: head.startswith(b"TOY"),
    labelled=True,
)
"""


def install(folder, source, entry="toy_reader:TOY"):
    """Put a package with one module beside the others, as pip does."""
    folder.mkdir(exist_ok=True)
    (folder / "toy_reader.py").write_text(source)
    about = folder / "toy_reader-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-reader\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[recap.readers]\ntoy = {entry}\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages of its own."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "toy_reader", raising=False)
    for cached in (formats.all_formats, formats.known_suffixes):
        cached.cache_clear()
    yield tmp_path / "site"
    sys.modules.pop("toy_reader", None)
    for cached in (formats.all_formats, formats.known_suffixes):
        cached.cache_clear()


def test_a_format_of_another_package(site, tmp_path):
    install(site, READER)
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.toy").write_text("TOY\n09\n90\n")
    (folder / "unnamed").write_text("TOY\n99\n99\n")
    (folder / "notes.txt").write_text("not an image")
    assert sniff(folder / "unnamed") == "toy"
    assert read_image(folder / "a.toy").pixels.tolist() == [[0, 1], [1, 0]]
    assert formats.bare_name(folder / "a.toy") == "a"
    assert list_images(folder) == [folder / "a.toy", folder / "unnamed"]
    found = find_cases([folder], tmp_path / "scratch")
    assert [case.name for case in found.cases] == ["a.toy", "unnamed"]
    assert [file.name for file, _ in found.skipped] == ["notes.txt"]


def test_the_recipe_of_contributing_is_that_of_the_test():
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipe = text.partition("## Adding a format")[2].partition("\n## ")[0]
    assert READER.strip() in recipe.replace("\n   ", "\n")
    assert '[project.entry-points."recap.readers"]' in recipe


@pytest.mark.parametrize(
    ("source", "entry", "reason"),
    [
        ("1 / 0", "toy_reader:TOY", "ZeroDivisionError"),
        ("TOY = 3", "toy_reader:TOY", "not a FileFormat"),
        ("", "toy_reader:TOY", "AttributeError"),
        (READER.replace('"toy"', '"raster"'), "toy_reader:TOY", "there already"),
    ],
)
def test_a_reader_that_cannot_be_used_is_named(site, tmp_path, source, entry, reason):
    install(site, source, entry)
    (tmp_path / "a.png").write_bytes(picture("PNG"))
    (tmp_path / "notes").write_text("nobody knows this")
    assert sniff(tmp_path / "a.png") == "raster"
    with pytest.raises(InputError, match=reason) as caught:
        sniff(tmp_path / "notes")
    assert "toy_reader" in str(caught.value)
    assert caught.value.remedy
