import pytest

pytest.importorskip("highdicom")

from dicom_files import item, write
from pacs_images import DETECTOR, marked, study
from recap.errors import InputError
from recap.service.pacs.score_study import study_scorer


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
    assert study_scorer(DETECTOR)(tmp_path / "images", tmp_path / "results") == []
    assert list((tmp_path / "results").iterdir()) == []


def test_a_study_whose_folder_cannot_be_searched_is_not_taken_for_one_without_images(
    tmp_path, monkeypatch
):
    def refuse(*_):
        raise InputError("too many open files")

    monkeypatch.setattr("recap.data.cases.walk", refuse)
    (tmp_path / "images").mkdir()
    with pytest.raises(InputError, match="too many open files"):
        study_scorer(DETECTOR)(tmp_path / "images", tmp_path / "results")


def test_a_study_that_cannot_be_read_says_why(tmp_path):
    (image,) = study(1, slices=1)
    image.PixelData = image.PixelData[:10]
    write(tmp_path / "images" / "a.dcm", image)
    with pytest.raises(InputError, match=r"None of 1 case could be scored: .*ends early"):
        study_scorer(DETECTOR)(tmp_path / "images", tmp_path / "results")


def test_a_case_that_breaks_scoring_is_told_and_the_others_are_scored(
    tmp_path, monkeypatch, caplog
):
    from recap.scoring.predict import Scored

    def breaks_once(detector, sources):
        for source in sources:
            if source.name == "a.dcm":
                raise ValueError("Secret^Person")
            case = source.open(DETECTOR.card.reading)
            yield Scored(source, case, marked(case))

    monkeypatch.setattr("recap.scoring.predict.predict", breaks_once)
    for name, number in (("a", 1), ("b", 2)):
        (image,) = study(number, slices=1)
        write(tmp_path / "images" / f"{name}.dcm", image)
    (failed,) = study_scorer(DETECTOR)(tmp_path / "images", tmp_path / "results")
    assert failed.files == (tmp_path / "images" / "a.dcm",)
    assert failed.reason == "a.dcm: scoring failed (ValueError)"
    assert "scoring a case failed: ValueError at test_score_study.py:" in caplog.text
    assert "Secret" not in caplog.text
    assert [path.parent.name for path in (tmp_path / "results").rglob("report.dcm")] == ["0002"]
