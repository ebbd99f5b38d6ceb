"""A dot on a known source pixel is found again in every result, in pixels and in millimetres."""

from functools import cache
from pathlib import Path

import numpy as np
import pydicom
import pytest

pytest.importorskip("highdicom")

from dicom_cases import LEVEL, PEAK, PLACED, UNPLACED, Dotted
from recap.report.dicom.results import write_dicom_results

ALL = PLACED | UNPLACED


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    @cache
    def of(name: str) -> tuple[Dotted, dict[str, Path]]:
        folder = tmp_path_factory.mktemp("case")
        dotted = ALL[name](folder / "source")
        paths = write_dicom_results(
            dotted.case, dotted.prediction, folder / "results", **dotted.arguments
        )
        return dotted, {path.name: path for path in paths}

    return of


def map_of(dotted: Dotted, files: dict[str, Path]) -> Path:
    """The map of the dot's frame: that of all, or its own."""
    return files.get("map.dcm") or files[f"map-{dotted.frame + 1:04d}.dcm"]


def dot_of(image) -> tuple[pydicom.Dataset, tuple[int, int]]:
    """The functional groups of the frame with the highest value, and where that is."""
    frames = image.get_frames() if hasattr(image, "get_frames") else image.pixel_array
    frames = frames.reshape(-1, *frames.shape[-2:])
    frame, row, column = np.unravel_index(frames.argmax(), frames.shape)
    return image.PerFrameFunctionalGroupsSequence[int(frame)], (int(row), int(column))


def in_patient(image, group, pixel) -> np.ndarray:
    shared = image.SharedFunctionalGroupsSequence[0]
    origin = np.array(group.PlanePositionSequence[0].ImagePositionPatient, float)
    cosines = np.array(shared.PlaneOrientationSequence[0].ImageOrientationPatient, float)
    spacing = np.array(shared.PixelMeasuresSequence[0].PixelSpacing, float)
    return origin + pixel[1] * spacing[1] * cosines[:3] + pixel[0] * spacing[0] * cosines[3:]


def names_the_frame(item, dotted: Dotted) -> bool:
    header = pydicom.dcmread(dotted.file, stop_before_pixels=True)
    several = int(header.get("NumberOfFrames", 1)) > 1
    return (
        item.ReferencedSOPInstanceUID == header.SOPInstanceUID
        and item.ReferencedSOPClassUID == header.SOPClassUID
        and item.get("ReferencedFrameNumber") == (dotted.frame + 1 if several else None)
    )


@pytest.mark.parametrize("name", PLACED)
def test_map(name, written):
    import highdicom

    dotted, files = written(name)
    image = highdicom.imread(map_of(dotted, files))
    group, pixel = dot_of(image)
    assert pixel == (dotted.row, dotted.column)
    np.testing.assert_allclose(in_patient(image, group, pixel), dotted.patient_mm(), atol=1e-4)
    (derivation,) = group.DerivationImageSequence
    assert names_the_frame(derivation.SourceImageSequence[0], dotted)
    assert image.get_frames().max() == np.float32(PEAK)
    assert image.get_frames().min() == np.float32(0.1)


@pytest.mark.parametrize("name", ["oblique", "coronal cut", "multi-frame", "monochrome1"])
def test_map_is_a_volume(name, written):
    """highdicom's own idea of where voxels lie, against the tags of the source."""
    import highdicom

    dotted, files = written(name)
    volume = highdicom.imread(files["map.dcm"]).get_volume()
    index = np.unravel_index(volume.array.argmax(), volume.array.shape)
    found = volume.affine @ (*index, 1)
    np.testing.assert_allclose(found[:3], dotted.patient_mm(), atol=1e-3)
    assert volume.array.size == dotted.prediction.map.size


@pytest.mark.parametrize("name", ALL)
def test_segments(name, written):
    import highdicom

    dotted, files = written(name)
    (path,) = (path for file, path in files.items() if file.startswith("segments"))
    image = highdicom.seg.segread(path)
    assert int(image.pixel_array.sum()) == 1
    group, pixel = dot_of(image)
    assert pixel == (dotted.row, dotted.column)
    assert names_the_frame(group.DerivationImageSequence[0].SourceImageSequence[0], dotted)
    assert image.get_segment_description(1).segment_label == "Abnormal region 1"
    if name in PLACED:
        np.testing.assert_allclose(in_patient(image, group, pixel), dotted.patient_mm(), atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_report(name, written):
    import highdicom

    dotted, files = written(name)
    report = highdicom.sr.srread(files["report.dcm"])
    (group,) = report.content.get_planar_roi_measurement_groups()
    corner = np.array([dotted.column, dotted.row])
    box = corner + np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]])
    np.testing.assert_array_equal(group.roi.value, box)
    (image,) = (item.ReferencedSOPSequence[0] for item in group.roi.ContentSequence)
    assert names_the_frame(image, dotted)
    values = {m.name.meaning: m.value for m in group.get_measurements()}
    assert values["Peak anomaly"] == PEAK
    assert ("Volume" in values) == dotted.in_volume
    segments = next(path for file, path in files.items() if file.startswith("segments"))
    (segment,) = pydicom.dcmread(segments).SegmentSequence
    assert group.tracking_uid == segment.TrackingUID
    (case,) = report.content.get_image_measurement_groups()
    scores = {m.name.meaning: m.value for m in case.get_measurements()}
    assert scores["Anomaly score"] == PEAK
    assert scores["p-value of the anomaly score"] == 0.02


@pytest.mark.parametrize("name", ALL)
def test_capture(name, written):
    dotted, files = written(name)
    (path,) = (path for file, path in files.items() if file.startswith("capture"))
    capture = pydicom.dcmread(path)
    image = dotted.case.images[dotted.prediction.highest]
    height, width = image.size_hw
    assert (capture.Columns, capture.PhotometricInterpretation) == (width, "RGB")
    shown = capture.pixel_array[:height].astype(int)
    pixels = image.pixels if image.pixels.ndim == 3 else np.repeat(image.pixels[..., None], 3, 2)
    changed = np.abs(shown - (np.clip(pixels, 0, 1) * 255).round()).max(axis=2)
    number = dotted.prediction.highest
    maps = dotted.prediction.map
    expected = np.unravel_index((maps if maps.ndim == 2 else maps[number]).argmax(), image.size_hw)
    assert np.unravel_index(changed.argmax(), changed.shape) == expected
    references = capture.SourceImageSequence
    assert any(names_the_frame(item, dotted) for item in references)


@pytest.mark.parametrize("name", ALL)
def test_patient_and_study_are_the_source_s(name, written):
    dotted, files = written(name)
    source = pydicom.dcmread(dotted.file, stop_before_pixels=True)
    results = [pydicom.dcmread(path) for path in files.values()]
    for result in results:
        for keyword in ("PatientID", "StudyInstanceUID", "StudyDate", "StudyID"):
            assert result.get(keyword) == source.get(keyword), keyword
        assert str(result.PatientName) == str(source.PatientName)
        assert result.get("FrameOfReferenceUID") in (None, source.get("FrameOfReferenceUID"))
        assert result.SeriesInstanceUID != source.SeriesInstanceUID
        assert "RESEARCH ONLY" in result.SeriesDescription
        assert (result.Manufacturer, result.ManufacturerModelName) == ("recap", "recap-ad")
    assert len({result.SOPInstanceUID for result in results}) == len(results)
    assert any(file.startswith("map") for file in files) == (name in PLACED)


def test_level_is_the_dot_s(written):
    dotted, _ = written("ct")
    assert 0.1 < LEVEL < PEAK
    assert len(dotted.arguments["regions"]) == 1
