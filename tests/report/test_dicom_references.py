"""Which source each frame of a segmentation names, with several findings on one frame."""

from pathlib import Path

import numpy as np
import pydicom
import pytest

pytest.importorskip("highdicom")

from dicom_cases import FRAME_OF_REFERENCE
from dicom_files import SERIES, place, save_dicom, save_enhanced
from recap.config import ReadingSettings
from recap.io import open_file
from recap.io.case import Case
from recap.io.dicom.series import group_series, open_series
from recap.report.dicom.results import write_dicom_results
from recap.scoring.regions import case_regions
from recap.types import Prediction

SLICES, SIDE = 4, 24
# Names that end in the number of another frame, that look like stand-ins, and that are long.
ROOTS = {"small numbers": SERIES, "2.25": "2.25", "long": "2.25.31415926535897932384626433"}


def saved_series(folder: Path, root: str) -> Case:
    paths = [
        save_dicom(
            folder / f"{number}.dcm",
            np.full((SIDE, SIDE), number, np.int16),
            Modality="CT",
            SOPInstanceUID=f"{root}.{SLICES - number}",
            FrameOfReferenceUID=FRAME_OF_REFERENCE,
            **place((0.0, 0.0, 2.0 * number)),
        )
        for number in range(SLICES)
    ]
    (series,) = group_series(paths)
    return open_series(series, ReadingSettings())


def written_segments(case: Case, maps: np.ndarray, out: Path) -> pydicom.Dataset:
    images = tuple(Prediction(float(map.max()), map) for map in maps)
    whole = maps[0] if case.kind == "image" else maps
    prediction = Prediction(images[0].score, whole, images=images)
    regions = case_regions(case, whole, 0.5)
    write_dicom_results(case, prediction, out, regions=regions, level=0.5)
    (path,) = out.glob("segments*.dcm")
    return pydicom.dcmread(path)


def highdicom_report(out: Path):
    import highdicom

    return highdicom.sr.srread(out / "report.dcm")


def spots(count: int, frames: list[int]) -> np.ndarray:
    """Maps with some findings, apart from each other, on some slices that do not touch."""
    maps = np.zeros((SLICES, SIDE, SIDE), np.float32)
    for frame in frames:
        for number in range(count):
            maps[frame, 2:4, 2 + 6 * number : 5 + 6 * number] = 0.9
    return maps


def named_by_place(segments: pydicom.Dataset) -> list[tuple[float, str]]:
    found = []
    for group in segments.PerFrameFunctionalGroupsSequence:
        (derivation,) = group.DerivationImageSequence
        (item,) = derivation.SourceImageSequence
        height = float(group.PlanePositionSequence[0].ImagePositionPatient[2])
        found.append((height, str(item.ReferencedSOPInstanceUID)))
    return sorted(found)


@pytest.mark.parametrize("root", ROOTS.values(), ids=ROOTS)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("frames", [[0], [1, 3]])
def test_every_segment_names_its_own_slice(root, count, frames, tmp_path):
    case = saved_series(tmp_path / "source", root)
    segments = written_segments(case, spots(count, frames), tmp_path / "out")
    assert len(segments.SegmentSequence) == count * len(frames)
    expected = [(2.0 * frame, f"{root}.{SLICES - frame}") for frame in frames]
    assert named_by_place(segments) == sorted(expected * count)
    listed = {str(item.ReferencedSOPInstanceUID) for item in segments.SourceImageSequence}
    assert listed == {f"{root}.{number + 1}" for number in range(SLICES)}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_findings_on_a_single_image_name_it(count, tmp_path):
    path = save_dicom(tmp_path / "a.dcm", np.zeros((SIDE, SIDE), np.uint8), Modality="CR")
    case = open_file(path, ReadingSettings())
    segments = written_segments(case, spots(count, [0])[:1], tmp_path / "out")
    uid = pydicom.dcmread(path).SOPInstanceUID
    groups = segments.PerFrameFunctionalGroupsSequence
    named = [group.DerivationImageSequence[0].SourceImageSequence[0] for group in groups]
    assert [item.ReferencedSOPInstanceUID for item in named] == [uid] * count


def saved_enhanced(folder: Path) -> tuple[Path, str]:
    """A multi-frame file of slices, and its name."""
    stack = np.zeros((SLICES, SIDE, SIDE), np.int16)
    places = [(0.0, 0.0, 2.0 * number) for number in range(SLICES)]
    path = save_enhanced(folder / "enhanced.dcm", stack, places)
    dataset = pydicom.dcmread(path)
    dataset.FrameOfReferenceUID = FRAME_OF_REFERENCE
    dataset.save_as(path)
    return path, str(dataset.SOPInstanceUID)


def test_findings_on_a_frame_of_a_multi_frame_file_name_file_and_frame(tmp_path):
    path, uid = saved_enhanced(tmp_path)
    case = open_file(path, ReadingSettings())
    segments = written_segments(case, spots(3, [2]), tmp_path / "out")
    groups = segments.PerFrameFunctionalGroupsSequence
    named = [group.DerivationImageSequence[0].SourceImageSequence[0] for group in groups]
    assert [(item.ReferencedSOPInstanceUID, item.ReferencedFrameNumber) for item in named] == [
        (uid, 3)
    ] * 3


@pytest.mark.parametrize(("axis", "number"), [("auto", 1), ("coronal", None)])
def test_the_report_of_a_multi_frame_file_names_the_frame_or_where_it_is_cut_the_file(
    axis, number, tmp_path
):
    """A picture across all frames was said to be of the last of them."""
    path, uid = saved_enhanced(tmp_path)
    case = open_file(path, ReadingSettings(axis=axis))
    maps = np.zeros((len(case.images), *case.images[0].size_hw), np.float32)
    maps[0, 1, 1] = 0.9
    written_segments(case, maps, tmp_path / "out")
    (group,) = highdicom_report(tmp_path / "out").content.get_image_measurement_groups()
    (image,) = (item for item in group.source_images)
    assert image.referenced_sop_instance_uid == uid
    assert image.referenced_frame_numbers == (None if number is None else [number])
