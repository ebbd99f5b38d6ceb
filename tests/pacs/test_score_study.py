from types import SimpleNamespace

import pytest

pytest.importorskip("highdicom")

from dicom_files import item, write
from pacs_images import study
from recap.config import ReadingSettings
from recap.errors import InputError
from recap.pacs.score_study import study_scorer

DETECTOR = SimpleNamespace(
    card=SimpleNamespace(settings=SimpleNamespace(reading=ReadingSettings()))
)


def test_a_study_without_images_has_no_results(tmp_path):
    report = item(
        SOPClassUID="1.2.840.10008.5.1.4.1.1.88.33",
        SOPInstanceUID="1.2.3",
        StudyInstanceUID="1.2",
        SeriesInstanceUID="1.2.1",
        Modality="SR",
    )
    write(tmp_path / "images" / "a.dcm", report)
    (tmp_path / "results").mkdir()
    study_scorer(DETECTOR)(tmp_path / "images", tmp_path / "results")
    assert list((tmp_path / "results").iterdir()) == []


def test_a_study_that_cannot_be_read_says_why(tmp_path):
    (image,) = study(1, slices=1)
    image.PixelData = image.PixelData[:10]
    write(tmp_path / "images" / "a.dcm", image)
    with pytest.raises(InputError, match=r"None of 1 cases could be scored: .*ends early"):
        study_scorer(DETECTOR)(tmp_path / "images", tmp_path / "results")
