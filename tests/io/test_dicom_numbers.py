"""Numbers that change what pixels mean are read, or the file is refused: none is left out."""

from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.uid import RLELossless

from dicom_files import data_set, item, save_compressed, save_dicom, write
from recap.config import ReadingSettings
from recap.errors import InputError
from recap.io.dicom.cases import open_dicom
from recap.io.dicom.header import LayeredTags, frame_tags, numbers, stated_number
from recap.io.dicom.pixels import MAX_FRAMES

READING = ReadingSettings(window="0,100")
GREY = np.array([[0, 10, 20], [30, 40, 100]], np.uint16)


def with_text(folder: Path, keyword: str, value: str, vr: str = "LO", **tags: object) -> Path:
    """A file with a number that is written under the name of a text, or wrongly."""
    dataset = data_set(GREY, **tags)
    dataset.add_new(keyword, vr, value)
    return write(folder / "a.dcm", dataset)


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        list(open_dicom(path, READING).images)
    return str(caught.value)


@pytest.mark.parametrize("value", ["-10", " -10.0 ", "-10.000000000000000000", "-10\\7"])
def test_numbers_that_come_as_text_are_numbers(tmp_path: Path, value: str) -> None:
    image = open_dicom(with_text(tmp_path, "RescaleIntercept", value), READING).images[0]
    np.testing.assert_allclose(image.pixels, np.clip((GREY - 10.0) / 100, 0, 1), atol=1e-6)


@pytest.mark.parametrize("keyword", ["RescaleIntercept", "RescaleSlope"])
@pytest.mark.parametrize("value", ["-1024,0", "none", "nan"])
def test_what_is_no_number_is_not_taken_for_absent(
    tmp_path: Path, keyword: str, value: str
) -> None:
    assert f"its {keyword} is no number: '{value}'" in refusal(with_text(tmp_path, keyword, value))


def test_an_empty_number_is_absent(tmp_path: Path) -> None:
    for keyword in ("RescaleIntercept", "RescaleSlope", "NumberOfFrames"):
        image = open_dicom(with_text(tmp_path, keyword, ""), READING).images[0]
        np.testing.assert_allclose(image.pixels, GREY / 100, atol=1e-6)


def test_a_scale_that_is_not_used_may_be_anything(tmp_path: Path) -> None:
    dataset = data_set(np.zeros((2, 2, 3), np.uint8))
    dataset.add_new("RescaleSlope", "LO", "none")
    assert open_dicom(write(tmp_path / "a.dcm", dataset), READING).images[0].pixels.ndim == 3


def test_the_first_that_says_something_is_believed() -> None:
    def tags(*values: object) -> LayeredTags:
        return LayeredTags(tuple({"RescaleSlope": value} for value in values))

    assert stated_number(tags(None, "", 2, 3), "RescaleSlope") == 2
    assert stated_number(tags(None, ""), "RescaleSlope") is None
    with pytest.raises(ValueError, match="RescaleSlope is no number"):
        stated_number(tags("x", 3), "RescaleSlope")
    assert numbers({"PixelSpacing": "0.5\\0.25"}, "PixelSpacing") == (0.5, 0.25)


def test_frames_are_not_dropped(tmp_path: Path) -> None:
    clip = np.arange(24, dtype=np.uint16).reshape(3, 2, 4)
    path = save_dicom(tmp_path / "a.dcm", clip, NumberOfFrames=None)
    assert "holds the bytes of 3 frames of 2x4 pixels" in refusal(path)
    dataset = data_set(clip, NumberOfFrames=None)
    for count in ("three", "0"):
        dataset.add_new("NumberOfFrames", "LO", count)
        assert "(NumberOfFrames)" in refusal(write(tmp_path / "b.dcm", dataset))
    dataset.add_new("NumberOfFrames", "LO", "3")
    assert len(open_dicom(write(tmp_path / "b.dcm", dataset), READING).images) == 3


def test_an_unreadable_number_of_frames(tmp_path: Path) -> None:
    """Where the bytes are those of one frame there is nothing to guess; packed ones say nothing."""
    assert len(open_dicom(with_text(tmp_path, "NumberOfFrames", "1A"), READING).images) == 1
    path = save_compressed(tmp_path / "b.dcm", GREY, RLELossless)
    dataset = pydicom.dcmread(path)
    dataset.add_new("NumberOfFrames", "LO", "1A")
    dataset.save_as(path)
    assert "its NumberOfFrames is no number: '1A'" in refusal(path)


@pytest.mark.parametrize("shape", [(1, 1), (3, 3)])
def test_a_byte_that_fills_up_is_no_frame(tmp_path: Path, shape: tuple[int, int]) -> None:
    path = save_dicom(tmp_path / "a.dcm", np.ones(shape, np.uint8))
    assert len(open_dicom(path, READING).images) == 1


def test_more_frames_than_anybody_scores_are_refused(tmp_path: Path) -> None:
    clip = np.zeros((MAX_FRAMES + 1, 1, 1), np.uint8)
    assert "more than 32768 are not read" in refusal(save_dicom(tmp_path / "a.dcm", clip))
    path = save_compressed(tmp_path / "b.dcm", clip[:2], RLELossless)
    assert len(open_dicom(path, READING).images) == 2


def test_what_a_frame_says_is_found_without_a_look_at_all_others() -> None:
    class Indexed(list):
        def __iter__(self):
            pytest.fail("all frames were gone through for one of them")

    groups = [item(FrameVOILUTSequence=[item(WindowCenter=number)]) for number in range(3)]
    header = {"PerFrameFunctionalGroupsSequence": Indexed(groups), "WindowCenter": 7}
    centres = [frame_tags(header, number).get("WindowCenter") for number in range(4)]
    assert centres == [0, 1, 2, 7]


@pytest.mark.parametrize("compressed", [False, True])
def test_twelve_bits_at_the_upper_end_of_sixteen(tmp_path: Path, compressed: bool) -> None:
    values = np.array([[0, 1, 2047], [2048, 2049, 4095]], np.uint16)
    noise = np.array([[15, 0, 7], [8, 3, 15]], np.uint16)  # such as overlays of old files
    for stored in (values << 4 | noise, (values << 4 | noise).view(np.int16)):
        signed = stored.dtype.kind == "i"
        expected = (values + 2048) % 4096 - 2048.0 * signed if signed else values
        tags = {"BitsStored": 12, "HighBit": 15}
        if compressed:
            path = save_compressed(tmp_path / "a.dcm", stored, RLELossless, **tags)
        else:
            path = save_dicom(tmp_path / "a.dcm", stored, **tags)
        unit = open_dicom(path, ReadingSettings(window="-2048,4095")).images[0].pixels
        np.testing.assert_allclose(unit * 6143 - 2048, expected, atol=1e-2)


@pytest.mark.parametrize("high_bit", [3, 16, 31, None])
def test_a_high_bit_that_cannot_be_says_nothing(tmp_path: Path, high_bit: int | None) -> None:
    path = save_dicom(tmp_path / "a.dcm", GREY, BitsStored=12, HighBit=high_bit)
    unit = open_dicom(path, READING).images[0].pixels
    np.testing.assert_allclose(unit, GREY / 100, atol=1e-6)
