import logging
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pydicom
import pytest

pytest.importorskip("highdicom")

from dicom_cases import FRAME_OF_REFERENCE, PLACED, UNPLACED, WHO, inverted, radiograph
from dicom_files import place, save_dicom, save_series
from recap.config import ReadingSettings
from recap.errors import InputError
from recap.io import open_file
from recap.io.case import Case
from recap.io.dicom.header import is_own
from recap.io.dicom.series import group_series, open_series
from recap.report.dicom.identity import repeatable_uids
from recap.report.dicom.report import MAX_FINDINGS, find_findings
from recap.report.dicom.results import write_dicom_results
from recap.scoring.regions import case_regions, find_regions
from recap.types import Prediction

# What dicom3tools of 2022 does not know yet, and what a source leaves open.
ACCEPTED = (
    "Unrecognized defined term <99RECAP>",  # codes of our own, declared in the report
    "Unrecognized defined term <QUANTITY>",  # the standard's own term for such maps
    "attribute <Laterality>",  # empty where the source does not say it
    "would be needed to build DICOMDIR",
)


def predicted(case: Case, maps: np.ndarray) -> Prediction:
    images = tuple(Prediction(float(map.max()), map) for map in maps)
    whole = maps[0] if case.kind == "image" else maps
    return images[0] if case.kind == "image" else Prediction(images[0].score, whole, images=images)


def complaints(path: Path) -> list[str]:
    """What dciodvfy says of a file beyond what we accept."""
    run = subprocess.run(["dciodvfy", path], capture_output=True, text=True, check=False)
    said = [line for line in (run.stdout + run.stderr).splitlines() if " - " in line]
    assert not any(line.startswith("Error") for line in said), path.name
    return [line for line in said if not any(known in line for known in ACCEPTED)]


needs_dciodvfy = pytest.mark.skipif(
    not shutil.which("dciodvfy"), reason="needs dciodvfy (Debian: dicom3tools)"
)


@pytest.mark.slow
@needs_dciodvfy
@pytest.mark.parametrize("name", PLACED | UNPLACED)
@pytest.mark.parametrize("scale", [(0.0, 1.0), (0.12, 0.24)])
def test_dciodvfy_finds_no_error(name, scale, tmp_path):
    dotted = (PLACED | UNPLACED)[name](tmp_path / "source")
    paths = write_dicom_results(
        dotted.case, dotted.prediction, tmp_path / "results", scale=scale, **dotted.arguments
    )
    maps = {path.name for path in paths if path.name.startswith("map")}
    assert len(maps) == (0 if name in UNPLACED else 3 if name == "three planes" else 1)
    assert len(paths) == 3 + len(maps)
    assert {path.name: complaints(path) for path in paths} == {path.name: [] for path in paths}


@pytest.mark.slow
@needs_dciodvfy
def test_dciodvfy_finds_no_error_with_findings_and_a_history(tmp_path):
    """Three findings on one slice of a source with losses, burned in text and another's numbers."""
    tags = {
        "IssuerOfPatientID": "General Hospital",
        "PatientIdentityRemoved": "YES",
        "DeidentificationMethod": "by hand",
        "BurnedInAnnotation": "YES",
        "LossyImageCompression": "01",
        "LossyImageCompressionRatio": [10, 2.5],
        "LossyImageCompressionMethod": ["ISO_10918_1", "ISO_15444_1"],
        "FrameOfReferenceUID": FRAME_OF_REFERENCE,
    }
    stack = np.zeros((4, 40, 60), np.int16)
    (series,) = group_series(save_series(tmp_path / "source", stack, **WHO, **tags))
    case = open_series(series, ReadingSettings())
    maps = np.zeros(stack.shape, np.float32)
    maps[1, 5:8, 5:50:15] = 0.9
    paths = write_dicom_results(
        case,
        predicted(case, maps),
        tmp_path / "out",
        regions=case_regions(case, maps, 0.5),
        level=0.5,
    )
    assert len(pydicom.dcmread(tmp_path / "out" / "segments.dcm").SegmentSequence) == 3
    assert {path.name: complaints(path) for path in paths} == {path.name: [] for path in paths}


@pytest.mark.parametrize("scale", [(0.0, 1.0), (0.12, 0.24), (1 / 3, 2 / 3), (0.5, 7.5)])
def test_the_window_of_a_map_is_the_scale(scale, tmp_path):
    dotted = inverted(tmp_path / "source")
    write_dicom_results(dotted.case, dotted.prediction, tmp_path / "out", scale=scale)
    read = pydicom.dcmread(tmp_path / "out" / "map.dcm")
    (window,) = read.SharedFunctionalGroupsSequence[0].FrameVOILUTSequence
    assert window.VOILUTFunction == "LINEAR_EXACT"
    half = float(window.WindowWidth) / 2
    edges = (float(window.WindowCenter) - half, float(window.WindowCenter) + half)
    assert edges == pytest.approx(scale)


def test_without_regions_there_are_no_segments(tmp_path):
    dotted = inverted(tmp_path / "source")
    paths = write_dicom_results(dotted.case, dotted.prediction, tmp_path / "out")
    assert [path.name for path in paths] == ["map.dcm", "report.dcm", "capture-0002.dcm"]
    assert all(is_own(pydicom.dcmread(path)) for path in paths)
    assert not is_own(pydicom.dcmread(dotted.file))
    skipped = {each.files[0]: each.skipped for each in group_series([dotted.file, *paths])}
    assert skipped.pop(dotted.file) == ""
    assert skipped == dict.fromkeys(paths, "a result of recap, not an image.")


def test_earlier_results_go_and_other_files_stay(tmp_path):
    dotted = radiograph(tmp_path / "source")
    out = tmp_path / "out"
    out.mkdir()
    for name in ("map.dcm", "capture-0077.dcm", "mine.dcm"):
        (out / name).write_bytes(b"old")
    paths = write_dicom_results(dotted.case, dotted.prediction, out)
    assert {path.name for path in out.iterdir()} == {path.name for path in paths} | {"mine.dcm"}


def test_uids_are_new_unless_asked_otherwise(tmp_path):
    dotted = radiograph(tmp_path / "source")

    def uids(folder: str, **given) -> list[str]:
        paths = write_dicom_results(
            dotted.case, dotted.prediction, tmp_path / folder, **dotted.arguments, **given
        )
        read = [pydicom.dcmread(path, stop_before_pixels=True) for path in paths]
        return [each.SOPInstanceUID for each in read] + [each.SeriesInstanceUID for each in read]

    assert not set(uids("a")) & set(uids("b"))
    assert uids("c", new_uid=repeatable_uids("x")) == uids("d", new_uid=repeatable_uids("x"))
    assert not set(uids("e", new_uid=repeatable_uids("y"))) & set(uids("f"))


def test_only_dicom_sources_have_dicom_results(tmp_path):
    case = Case("image", "photo.png", [])
    with pytest.raises(InputError, match=r"photo\.png: was not read from DICOM files"):
        write_dicom_results(case, predicted(case, np.zeros((1, 4, 4), np.float32)), tmp_path)


@pytest.mark.parametrize("keyword", ["StudyInstanceUID", "SOPInstanceUID"])
def test_a_source_without_names_is_refused(keyword, tmp_path):
    path = save_dicom(tmp_path / "a.dcm", np.zeros((8, 8), np.uint8), **{keyword: None})
    case = open_file(path, ReadingSettings())
    with pytest.raises(InputError, match=f"its {keyword} is ''"):
        write_dicom_results(case, predicted(case, np.ones((1, 8, 8), np.float32)), tmp_path / "out")


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    dotted = radiograph(tmp_path / "source")
    (tmp_path / "out" / "report.dcm").mkdir(parents=True)  # cannot be removed like a file
    with pytest.raises(InputError, match=r"chest\.dcm: its DICOM results could not be written"):
        write_dicom_results(dotted.case, dotted.prediction, tmp_path / "out")


def test_map_of_another_size_is_refused(tmp_path):
    dotted = inverted(tmp_path)
    other = replace(dotted.prediction, map=dotted.prediction.map[:, :5])
    with pytest.raises(InputError, match="the map has"):
        write_dicom_results(dotted.case, other, tmp_path / "out")


def test_logs_and_warnings_do_not_name_the_patient(tmp_path, caplog, recwarn):
    path = save_dicom(
        tmp_path / "a.dcm", np.zeros((8, 8), np.uint8), **(WHO | {"PatientName": "Single"})
    )
    case = open_file(path, ReadingSettings())
    with caplog.at_level(logging.DEBUG):
        write_dicom_results(case, predicted(case, np.ones((1, 8, 8), np.float32)), tmp_path / "out")
    assert "Single" not in caplog.text
    assert not any("Single" in str(warning.message) for warning in recwarn)
    assert pydicom.dcmread(tmp_path / "out" / "report.dcm").PatientName == "Single"


def test_values_that_are_not_valid_are_left_empty(tmp_path):
    wrong = {"PatientSex": "?", "PatientBirthDate": "31.12.1950", "StudyTime": "noon"}
    path = tmp_path / "a.dcm"
    with pytest.warns(UserWarning, match="Invalid value"):
        save_dicom(path, np.zeros((8, 8), np.uint8), **(WHO | wrong))
    case = open_file(path, ReadingSettings())
    paths = write_dicom_results(
        case, predicted(case, np.ones((1, 8, 8), np.float32)), tmp_path / "out"
    )
    for result in map(pydicom.dcmread, paths):
        assert [result.get(keyword) for keyword in wrong] in ([""] * 3, ["", "", None])


def test_images_of_one_place_have_objects_of_their_own(tmp_path):
    """A dynamic series: the place alone cannot tell its frames apart."""
    paths = [
        save_dicom(
            tmp_path / f"{number}.dcm",
            np.full((6, 8), number, np.uint16),
            Modality="MR",
            SOPClassUID="1.2.840.10008.5.1.4.1.1.4",
            InstanceNumber=number + 1,
            FrameOfReferenceUID=FRAME_OF_REFERENCE,
            **place((0.0, 0.0, 5.0)),
        )
        for number in range(3)
    ]
    (series,) = group_series(paths)
    case = open_series(series, ReadingSettings())
    maps = np.zeros((3, 6, 8), np.float32)
    maps[1, 2, 3] = maps[2, 4, 5] = 1
    written = write_dicom_results(
        case,
        predicted(case, maps),
        tmp_path / "out",
        regions=find_regions(maps, 0.5),
        level=0.5,
    )
    assert sorted(path.name for path in written if "map" in path.name) == [
        f"map-{number:04d}.dcm" for number in (1, 2, 3)
    ]
    segments = [path for path in written if "segments" in path.name]
    assert [path.name for path in segments] == ["segments-0002.dcm", "segments-0003.dcm"]
    read = [pydicom.dcmread(path) for path in segments]
    assert len({each.SeriesInstanceUID for each in read}) == 1
    for each, number in zip(read, (1, 2), strict=True):
        (reference,) = each.SourceImageSequence
        source = pydicom.dcmread(case.dicom_frames[number].path)
        assert reference.ReferencedSOPInstanceUID == source.SOPInstanceUID
        assert np.argwhere(each.pixel_array).tolist() == [[2, 3] if number == 1 else [4, 5]]


def volume_case(folder: Path, shape=(5, 8, 9)) -> Case:
    (series,) = group_series(save_series(folder, np.zeros(shape, np.int16)))
    return open_series(series, ReadingSettings())


def test_what_touches_across_slices_is_one_finding(tmp_path):
    case = volume_case(tmp_path)
    maps = np.zeros((5, 8, 9), np.float32)
    maps[1, 2:4, 2:5] = 0.6
    maps[2, 3:5, 4:6] = 0.8  # touches the one before
    maps[4, 7, 8] = 0.7  # alone
    regions = case_regions(case, maps, 0.5)
    assert len(regions) == 3
    labels, findings = find_findings(case, maps, regions, 0.5)
    first, second = findings
    assert (first.number, first.voxels, first.area_px) == (1, 10, 4)
    assert first.peak == pytest.approx(0.8)
    assert first.mean == pytest.approx((6 * 0.6 + 4 * 0.8) / 10)
    assert (first.peak_frame, first.box_xyxy_px) == (2, (4, 3, 6, 5))
    assert (second.peak_frame, second.peak_xy_px) == (4, (8, 7))
    np.testing.assert_array_equal(labels > 0, maps > 0)
    assert set(np.unique(labels[4])) == {0, 2}


def test_frames_in_time_are_not_neighbours():
    case = Case("frames", "clip", [])
    maps = np.zeros((3, 4, 4), np.float32)
    maps[:, 1, 1] = 1
    _, findings = find_findings(case, maps, find_regions(maps, 0.5), 0.5)
    assert [finding.voxels for finding in findings] == [1, 1, 1]


def test_ignored_pixels_and_other_regions_are_in_no_finding():
    case = Case("image", "picture", [])
    maps = np.zeros((1, 5, 5), np.float32)
    maps[0, 1, :] = 1
    ignore = np.zeros((5, 5), bool)
    ignore[:, 2] = True
    regions = find_regions(maps, 0.5, ignore=ignore)
    labels, findings = find_findings(case, maps, regions, 0.5, ignore)
    assert [finding.voxels for finding in findings] == [2, 2]
    assert labels[0, 1].astype(bool).tolist() == [True, True, False, True, True]
    only, _ = find_findings(case, maps, regions[:1], 0.5, ignore)
    assert np.count_nonzero(only) == 2


def test_pixels_that_tie_with_the_calibration_are_in_no_finding():
    """A level a hair above a value of the map, as calibrations set it, leaves that value out."""
    maps = np.full((1, 5, 5), np.float32(0.7))
    maps[0, 2, 1:4:2] = 0.9
    level = float(np.nextafter(float(maps[0, 0, 0]), 1.0))
    regions = find_regions(maps, level)
    _, findings = find_findings(Case("image", "picture", []), maps, regions, level)
    assert [finding.voxels for finding in findings] == [1, 1]
    whole = [replace(regions[0], box_xyxy_px=(0, 0, 5, 5))]
    assert np.count_nonzero(find_findings(Case("image", "p", []), maps, whole, level)[0]) == 1


def test_too_many_regions_leave_the_strongest():
    case = Case("image", "picture", [])
    maps = np.zeros((1, 60, 60), np.float32)
    count = len(range(0, 60, 2)) ** 2
    maps[0, ::2, ::2] = np.linspace(0.6, 0.9, count).reshape(30, 30)
    labels, findings = find_findings(case, maps, find_regions(maps, 0.5), 0.5)
    assert len(findings) == MAX_FINDINGS < count
    assert findings[0].peak == pytest.approx(0.9)
    assert np.count_nonzero(labels) == MAX_FINDINGS
