"""What `recap score` finds under files, folders and archives, and what it calls it."""

import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage

from dicom_files import item, save_dicom, save_series, write
from recap.config import ReadingSettings
from recap.data.benchmark import find_domains, read_domain
from recap.data.cases import Found, _with_unique_names, find_cases, open_one_case
from recap.data.check import inspect_data
from recap.data.folder import list_images
from recap.errors import InputError, RecapError
from recap.io import formats
from recap.io.raster import read_raster
from recap.results.table import MANIFEST, TABLE
from recap.scoring.bundle import CARD, read_card
from volume_files import write_nifti

READING = ReadingSettings()
GREY = np.full((6, 8), 90, np.uint8)


def png(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    PillowImage.fromarray(GREY).save(path)
    return path


@pytest.fixture
def search(tmp_path):
    """Search with a folder for archives that does not exist yet."""

    def run(*paths):
        return find_cases(list(paths), tmp_path / "scratch")

    return run


def names(found):
    return [case.name for case in found.cases]


def reasons(found):
    return {path.name: reason for path, reason in found.skipped}


def test_names_keep_the_folders_and_count_as_people_do(search, tmp_path):
    root = tmp_path / "root"
    for name in ("b/2/x10.png", "b/2/x9.png", "b/10/x1.png", "A.png", "c d/é.png"):
        png(root / name)
    found = search(root)
    assert names(found) == ["A.png", "b/2/x9.png", "b/2/x10.png", "b/10/x1.png", "c d/é.png"]
    assert [case.files for case in found.cases] == [(root / name,) for name in names(found)]
    assert names(search(root)) == names(found)
    assert found.skipped == ()


def test_a_new_file_leaves_the_other_names_alone(search, tmp_path):
    root = tmp_path / "root"
    png(root / "b.png")
    save_series(root / "ct", np.zeros((3, 8, 8), np.int16))
    before = set(names(search(root)))
    png(root / "a.png")
    png(root / "ct" / "a.png")
    assert set(names(search(root))) == before | {"a.png", "ct/a.png"}


def test_hidden_files_are_left_alone(search, tmp_path):
    png(tmp_path / "root" / "a.png")
    for name in ("._a.png", ".DS_Store", ".git/b.png", "sub/.c.png"):
        png(tmp_path / "root" / "seen.png").rename(_made(tmp_path / "root" / name))
    found = search(tmp_path / "root")
    assert (names(found), found.skipped) == (["a.png"], ())


def _made(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize("marks", [[CARD], [TABLE, MANIFEST]])
def test_detectors_and_results_below_a_folder_hold_no_cases(search, tmp_path, marks):
    """Thumbnails, overlays and previews would be scored, fitted on or calibrated with."""
    root, own = tmp_path / "root", tmp_path / "root" / "p1" / "earlier"
    png(root / "a.png")
    png(own / "overlays" / "a.png")
    for name in marks[1:]:
        (own / name).touch()
    assert names(search(root)) == ["a.png", "p1/earlier/overlays/a.png"]  # may be anything else
    (own / marks[0]).touch()
    (root / "link").symlink_to(own)
    found = search(root)
    assert names(found) == ["a.png"]
    assert {path for path, _ in found.skipped} == {own, root / "link"}
    assert set(reasons(found).values()) == {
        "a detector or results of recap, with pictures of its own"
    }
    assert list_images(root) == [root / "a.png"]
    # Who names it means it.
    assert names(search(own)) == ["overlays/a.png"]
    assert list_images(own) == [own / "overlays" / "a.png"]


def test_other_files_are_named_with_the_reason(search, tmp_path):
    root = tmp_path / "root"
    png(root / "a.png")
    (root / "notes.txt").write_text("BMI 23, no findings\n")
    (root / "empty").touch()
    with zipfile.ZipFile(root / "more.zip", "w") as archive:
        archive.writestr("b.png", b"")
    report = item(SOPClassUID="1.2.840.10008.5.1.4.1.1.88.11", SOPInstanceUID="1.2", Modality="SR")
    write(root / "report", report)
    found = search(root)
    assert names(found) == ["a.png"]
    told = reasons(found)
    assert told.keys() == {"notes.txt", "empty", "more.zip", "report"}
    assert told["notes.txt"] == told["empty"] == "not an image"
    assert "name it on the command line" in told["more.zip"]
    assert "holds no pixels (SR)" in told["report"]


@pytest.mark.parametrize("name", ["a.png", "a.DCM", "a.nii.gz", "a.nrrd", "a.svs", "a.TIFF"])
@pytest.mark.parametrize("content", [b"", b"nothing of the sort"])
def test_what_is_named_like_an_image_but_is_none_is_a_case_that_says_so(
    name, content, search, tmp_path
):
    png(tmp_path / "root" / "good.png")
    bad = tmp_path / "root" / name
    bad.write_bytes(content)
    found = search(tmp_path / "root")
    assert set(names(found)) == {name, "good.png"}
    case = next(case for case in found.cases if case.name == name)
    with pytest.raises(InputError, match=name) as error:
        case.open(READING)
    assert "\n" not in str(error.value)


def test_an_empty_folder_and_a_wrong_path_are_errors(search, tmp_path):
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    with pytest.raises(InputError, match=r"empty: no images\. Looked for .*DICOM"):
        search(tmp_path / "empty")
    with pytest.raises(InputError, match="nowhere: there is no such file or folder"):
        search(tmp_path / "empty", tmp_path / "nowhere")
    (tmp_path / "empty" / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match=r"Left 1 other file alone, such as notes\.txt"):
        search(tmp_path / "empty")


@pytest.mark.skipif(os.name != "posix", reason="needs links and pipes")
def test_links_that_lead_back_and_pipes(search, tmp_path):
    root = tmp_path / "root"
    png(root / "sub" / "a.png")
    png(tmp_path / "elsewhere" / "b.png")
    (root / "sub" / "loop").symlink_to(root)
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "gone.png").symlink_to(tmp_path / "no such file")
    (root / "gone").symlink_to(tmp_path / "no such file")
    os.mkfifo(root / "pipe.png")
    os.mkfifo(root / "pipe")
    found = search(root)
    assert set(names(found)) == {"linked/b.png", "sub/a.png", "gone.png", "pipe.png"}
    assert reasons(found).keys() == {"gone", "pipe"}
    for case in found.cases:
        if case.name in ("gone.png", "pipe.png"):
            with pytest.raises(InputError, match=r"no such file|neither a file nor a folder"):
                case.open(READING)


@pytest.fixture
def locked(monkeypatch):
    """Files with "locked" in their name cannot be read, not even by root."""
    original = Path.open

    def refuse(self, *arguments, **options):
        if "locked" in self.name:
            raise PermissionError(13, "Permission denied")
        return original(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)


def test_files_that_may_not_be_read_are_cases_that_say_so(locked, search, tmp_path):
    """Whatever their names: a DICOM study without its locked slices would be another study."""
    root = tmp_path / "root"
    for name in ("a.png", "locked.png"):
        png(root / name)
    save_dicom(root / "IM1-locked", GREY)
    found = search(root, root / "locked.png")
    assert names(found) == [
        "1-root/a.png",
        "1-root/IM1-locked",
        "1-root/locked.png",
        "2-root/locked.png",
    ]
    for case in found.cases[1:]:
        with pytest.raises(InputError, match=f"{case.files[0].name}.*Permission denied"):
            case.open(READING)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_folder_that_may_not_be_read(search, tmp_path):
    png(tmp_path / "root" / "locked" / "a.png")
    png(tmp_path / "root" / "b.png")
    (tmp_path / "root" / "locked").chmod(0)
    try:
        with pytest.raises(InputError, match="locked: this folder cannot be read"):
            search(tmp_path / "root")
    finally:
        (tmp_path / "root" / "locked").chmod(0o700)


def test_the_same_names_in_two_folders(search, tmp_path):
    png(tmp_path / "one" / "x" / "a.png")
    shutil.copytree(tmp_path / "one" / "x", tmp_path / "two" / "x")
    given = [tmp_path / "one" / "x", tmp_path / "two" / "x", tmp_path / "one" / "x" / "a.png"]
    assert names(search(*given)) == ["1-x/a.png", "2-x/a.png", "3-x/a.png"]
    assert names(search(*given, given[0])) == [*names(search(*given)), "4-x/a.png"]
    assert names(search(given[2])) == ["a.png"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a a a", "a a-2 a-3"),
        ("a a a-2", "a a-3 a-2"),
        ("a-2 a a", "a-2 a a-3"),
        ("s/a s/a t/a", "s/a s/a-2 t/a"),
        ("a a-2 a a-2", "a a-2 a-3 a-2-2"),
    ],
)
def test_no_two_cases_share_a_name(given, expected):
    cases = [Found(name, (Path(str(n)),)) for n, name in enumerate(given.split())]
    named = list(_with_unique_names(cases))
    assert [case.name for case in named] == expected.split()
    assert [case.files for case in named] == [case.files for case in cases]


def test_a_series_is_one_case_and_its_copy_none(search, tmp_path):
    root = tmp_path / "root"
    files = save_series(root / "a", np.zeros((4, 8, 8), np.int16), SeriesNumber=3)
    shutil.copytree(root / "a", root / "b")
    save_dicom(root / "a" / "xray.dcm", GREY, Modality="DX", SOPInstanceUID="1.2.3")
    found = search(root)
    assert names(found) == ["a/series-3", "a/xray.dcm"]
    series, xray = found.cases
    assert series.files == tuple(files)  # by place; their names are shuffled
    assert series.path == str(root / "a")
    assert xray.path == str(root / "a" / "xray.dcm")
    assert len(found.skipped) == 4
    assert all(path.parent.name == "b" for path, _ in found.skipped)
    assert all("a copy of" in reason for _, reason in found.skipped)


def test_a_file_named_like_a_series(search, tmp_path):
    root = tmp_path / "root"
    save_series(root, np.zeros((3, 8, 8), np.int16), SeriesNumber=3)
    png(root / "x.png").rename(root / "series-3")
    assert sorted(names(search(root))) == ["series-3", "series-3-2"]


def test_a_nifti_pair_is_one_case_of_two_files(search, tmp_path):
    header = write_nifti(
        _made(tmp_path / "root" / "v.hdr"), np.zeros((3, 4, 5), np.int16), np.eye(4)
    )
    for given in (tmp_path / "root", header, header.with_suffix(".img")):
        (case,) = search(given).cases
        assert case.files == (header, header.with_suffix(".img"))
        assert len(case.open(READING).images) == 5
    header.with_suffix(".img").unlink()
    (case,) = search(tmp_path / "root").cases
    assert case.files == (header,)
    with pytest.raises(InputError, match=r"\.img file of the same name, which is not there"):
        case.open(READING)


def zipped(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_a_zip_is_a_folder(search, tmp_path):
    data = png(tmp_path / "a.png").read_bytes()
    members = {"x/10.png": data, "x/9.png": data, "__MACOSX/x/._9.png": b"", "x/notes.txt": b"hi"}
    path = zipped(tmp_path / "study.zip", **members)
    found = search(path)
    assert names(found) == ["x/9.png", "x/10.png"]
    assert found.cases[0].path == f"{path}/x/9.png"
    assert found.skipped == ((path / "x" / "notes.txt", "not an image"),)
    assert np.array_equal(np.rint(found.cases[0].open(READING).images[0].pixels * 255), GREY)
    # Two archives of one name do not meet in the scratch folder.
    other = zipped(_made(tmp_path / "other" / "study.zip"), **{"x/9.png": data})
    assert names(search(path, other))[2:] == ["2-other/x/9.png"]
    assert len(list((tmp_path / "scratch").iterdir())) == 3


@pytest.mark.parametrize(
    "name", ["../out.png", "/out.png", "x/../../out.png", "..\\out.png", "C:\\out.png", "C:out.png"]
)
def test_a_hostile_zip_writes_nothing_and_is_a_case_that_says_so(name, search, tmp_path):
    data = png(tmp_path / "good" / "a.png").read_bytes()
    path = zipped(tmp_path / "bad.zip", **{"first.png": data, name: data})
    before = sorted(tmp_path.rglob("*"))
    found = search(path, tmp_path / "good")
    assert names(found) == [f"1-{tmp_path.name}/bad.zip", "2-good/a.png"]
    assert found.cases[0].path == str(path)
    with pytest.raises(
        InputError, match=r"bad\.zip.*leads out of the folder.*Nothing was unpacked"
    ):
        found.cases[0].open(READING)
    new = set(tmp_path.rglob("*")) - set(before)
    assert not [file for file in new if file.is_file()]


def test_a_file_that_vanishes_while_searching(search, tmp_path, monkeypatch):
    root = tmp_path / "root"
    png(root / "a.png")
    png(root / "b.png")
    original = formats._head

    def head(path):
        (root / "b.png").unlink(missing_ok=True)
        return original(path)

    monkeypatch.setattr(formats, "_head", head)
    found = search(root)
    assert names(found) == ["a.png", "b.png"]
    with pytest.raises(InputError, match=r"b\.png: there is no such file"):
        found.cases[1].open(READING)


def test_folders_that_are_left_out_are_not_searched(tmp_path):
    root = tmp_path / "root"
    for name in ("a.png", "results/overlays/a.png", "results-2/b.png"):
        png(root / name)
    found = find_cases([root], tmp_path / "scratch", leave_out=[root / "results"])
    assert (names(found), found.skipped) == (["a.png", "results-2/b.png"], ())
    named = root / "results" / "overlays" / "a.png"
    assert names(find_cases([named], tmp_path / "scratch", leave_out=[root / "results"]))


@pytest.mark.parametrize("name", ["scan.gif", "scan", "scan.dat"])
def test_an_image_that_no_reader_takes_is_a_case_that_says_so(name, search, tmp_path):
    png(tmp_path / "root" / "a.png")
    PillowImage.fromarray(GREY).save(tmp_path / "root" / name, format="GIF")
    found = search(tmp_path / "root")
    assert (names(found), found.skipped) == (["a.png", name], ())
    with pytest.raises(InputError, match=rf"{name}: not an image that can be read\. Use one of"):
        found.cases[1].open(READING)


@pytest.mark.skipif(os.name != "posix", reason="needs links")
@pytest.mark.parametrize(
    "use",
    [
        lambda link: find_cases([link], link.parent / "scratch"),
        list_images,
        read_domain,
        find_domains,
        inspect_data,
        read_raster,
        read_card,
    ],
)
def test_a_named_link_that_leads_nowhere_is_called_one(use, tmp_path):
    link = tmp_path / "a.png"
    link.symlink_to("gone")
    with pytest.raises(RecapError, match=r"a\.png: this is a link that leads nowhere, to gone\."):
        use(link)


def test_a_folder_that_holds_one_case_is_that_case(tmp_path):
    save_series(tmp_path / "ct", np.zeros((3, 6, 8), np.int16))
    (tmp_path / "ct" / "notes.txt").write_text("no image")
    case = open_one_case(tmp_path / "ct", READING)
    assert (case.kind, len(case.images)) == ("volume", 3)
    assert open_one_case(png(tmp_path / "two" / "a.png"), READING).kind == "image"
    png(tmp_path / "two" / "b.png")
    with pytest.raises(InputError, match=r"two: holds 2 cases \(a\.png, b\.png\).*recap score"):
        open_one_case(tmp_path / "two", READING)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty: no images"):
        open_one_case(tmp_path / "empty", READING)
