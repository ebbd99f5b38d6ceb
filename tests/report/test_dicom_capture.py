"""What a capture says of the patient and of the source's pixels."""

from pathlib import Path

import numpy as np
import pydicom
import pytest

pytest.importorskip("highdicom")

from dicom_cases import FRAME_OF_REFERENCE, WHO
from dicom_files import save_dicom, save_series
from recap.config import ReadingSettings
from recap.io import open_file
from recap.io.case import Case
from recap.io.dicom.series import group_series, open_series
from recap.report.dicom.identity import patient_and_study
from recap.report.dicom.results import write_dicom_results
from recap.types import Prediction

IDENTITY = {
    "IssuerOfPatientID": "General Hospital",
    "PatientIdentityRemoved": "YES",
    "DeidentificationMethod": "by hand",
    "LongitudinalTemporalInformationModified": "MODIFIED",
    "StudyDescription": "Chest",
}
LOSSY = {
    "LossyImageCompression": "01",
    "LossyImageCompressionRatio": [10, 2.5],
    "LossyImageCompressionMethod": ["ISO_10918_1", "ISO_15444_1"],
}


def results(case: Case, out: Path) -> dict[str, pydicom.Dataset]:
    maps = np.ones((len(case.images), *case.images[0].size_hw), np.float32)
    images = tuple(Prediction(1.0, map) for map in maps)
    whole = maps[0] if case.kind == "image" else maps
    prediction = Prediction(1.0, whole, images=images)
    paths = write_dicom_results(case, prediction, out)
    return {path.stem.partition("-")[0]: pydicom.dcmread(path) for path in paths}


def single(folder: Path, **tags: object) -> dict[str, pydicom.Dataset]:
    path = save_dicom(folder / "a.dcm", np.zeros((8, 9), np.uint8), Modality="CR", **WHO, **tags)
    return results(open_file(path, ReadingSettings()), folder / "out")


@pytest.mark.parametrize(
    ("source", "said"), [("YES", "YES"), ("NO", "NO"), (None, None), ("PERHAPS", None)]
)
def test_burned_in_annotation_is_the_sources(source, said, tmp_path):
    written = single(tmp_path, BurnedInAnnotation=source)["capture"]
    assert written.get("BurnedInAnnotation") == said


def test_the_patient_is_named_as_in_the_other_results(tmp_path):
    written = single(tmp_path, **IDENTITY)
    for keyword, value in IDENTITY.items():
        assert written["capture"].get(keyword) == value, keyword
        assert written["report"].get(keyword, value) == value, keyword
    for keyword in ("IssuerOfPatientID", "PatientIdentityRemoved", "DeidentificationMethod"):
        assert written["capture"][keyword] == written["report"][keyword]


def test_numbers_that_are_too_long_are_left_out_and_never_cut():
    """Two patients whose numbers begin alike would become one."""
    most = {"PatientID": 64, "IssuerOfPatientID": 64, "AccessionNumber": 16, "StudyID": 16}
    for more in (0, 1):
        header = pydicom.Dataset()
        for keyword, letters in most.items():
            with pydicom.config.disable_value_validation():
                setattr(header, keyword, "7" * (letters + more))
        clean = patient_and_study(header)
        for keyword, letters in most.items():
            assert clean.get(keyword, "") == ("" if more else "7" * letters), keyword
    assert "PatientID" in clean  # the standard wants it, if empty
    assert "IssuerOfPatientID" not in clean


def test_losses_stay_known(tmp_path):
    written = single(tmp_path / "lossy", **LOSSY)["capture"]
    assert {keyword: written.get(keyword) for keyword in LOSSY} == LOSSY
    assert (
        single(tmp_path / "not", LossyImageCompression="00")["capture"][
            "LossyImageCompression"
        ].value
        == "00"
    )
    assert "LossyImageCompression" not in single(tmp_path / "unknown")["capture"]


def test_one_slice_of_many_suffices(tmp_path):
    """A coronal cut shows all slices."""
    paths = save_series(
        tmp_path / "source", np.zeros((4, 8, 9), np.int16), FrameOfReferenceUID=FRAME_OF_REFERENCE
    )
    for number, path in enumerate(paths):
        dataset = pydicom.dcmread(path)
        dataset.BurnedInAnnotation = "YES" if number == 2 else "NO"
        if number == 1:
            dataset.LossyImageCompression = "01"
            dataset.LossyImageCompressionRatio = 7
        dataset.save_as(path)
    (series,) = group_series(paths)
    case = open_series(series, ReadingSettings(axis="coronal"))
    written = results(case, tmp_path / "out")["capture"]
    assert written.BurnedInAnnotation == "YES"
    assert (written.LossyImageCompression, written.LossyImageCompressionRatio) == ("01", 7)
