import warnings
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.pixels.decoders import JPEGLSLosslessDecoder
from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEGLSLossless

from dicom_files import (
    AXIAL,
    data_set,
    place,
    save_compressed,
    save_dicom,
    save_enhanced,
    table,
    write,
)
from recap.config import ReadingSettings
from recap.errors import InputError, SettingsError
from recap.io.case import Case
from recap.io.dicom.cases import is_dicom, open_dicom
from recap.io.raster import MAX_PIXELS

GREY = np.array([[0, 1, 2], [3, 4, 10]], np.uint16)


def opened(path: Path, **reading: object) -> Case:
    return open_dicom(path, ReadingSettings(**reading))


def pixels_of(folder: Path, stored: np.ndarray, window: str = "file", **tags: object) -> np.ndarray:
    case = opened(save_dicom(folder / "a.dcm", stored, **tags), window=window)
    assert case.kind == "image"
    image = case.images[0]
    assert image.pixels.dtype == np.float32
    return image.pixels


def test_linear_window_is_the_standards(tmp_path: Path) -> None:
    # c = 4, w = 5: below c - 0.5 - 2 = 1.5 black, above 5.5 white, in between a ramp.
    unit = pixels_of(tmp_path, GREY, WindowCenter=4, WindowWidth=5)
    np.testing.assert_allclose(unit, [[0, 0, 0.125], [0.375, 0.625, 1]], atol=1e-6)


def test_exact_and_sigmoid_windows(tmp_path: Path) -> None:
    tags = {"WindowCenter": 4, "WindowWidth": 4}
    exact = pixels_of(tmp_path, GREY, VOILUTFunction="LINEAR_EXACT", **tags)
    np.testing.assert_allclose(exact, [[0, 0, 0], [0.25, 0.5, 1]], atol=1e-6)
    curve = pixels_of(tmp_path, GREY, VOILUTFunction="SIGMOID", **tags)
    np.testing.assert_allclose(curve, 1 / (1 + np.exp(-(GREY.astype(float) - 4))), atol=1e-6)


def test_first_of_several_windows_and_odd_widths(tmp_path: Path) -> None:
    several = pixels_of(tmp_path, GREY, WindowCenter=[4, 99], WindowWidth=[5, 1])
    assert several[1, 1] == pytest.approx(0.625)
    threshold = pixels_of(tmp_path, GREY, WindowCenter=2.5, WindowWidth=1)
    assert threshold.tolist() == [[0, 0, 0], [1, 1, 1]]
    none = pixels_of(tmp_path, GREY, WindowCenter=2, WindowWidth=0)
    assert (none.min(), none.max()) == (0, 1)
    fraction = pixels_of(
        tmp_path,
        GREY,
        RescaleSlope=0.1,
        RescaleIntercept=0,
        **{"WindowCenter": 0.2, "WindowWidth": 0.4},
    )
    np.testing.assert_allclose(fraction, [[0, 0.25, 0.5], [0.75, 1, 1]], atol=1e-6)


def test_signed_pixels_in_hounsfield_units(tmp_path: Path) -> None:
    stored = np.array([[-1000, -160, 40], [240, 1000, 40]], np.int16)
    unit = pixels_of(tmp_path, stored, "abdomen", WindowCenter=0, WindowWidth=2)
    np.testing.assert_allclose(unit, [[0, 0, 0.5], [1, 1, 0.5]], atol=1e-6)
    shifted = pixels_of(tmp_path, stored + 24, "0,100", RescaleSlope=2, RescaleIntercept=-48)
    np.testing.assert_allclose(shifted, [[0, 0, 0.8], [1, 1, 0.8]], atol=1e-6)


def test_twelve_of_sixteen_bits(tmp_path: Path) -> None:
    """What stands above the stored bits is no part of the value."""
    stored = np.array([[0xF000, 0xA800], [0x0FFF, 0x07FF]], np.uint16)
    unit = pixels_of(tmp_path, stored, "0,4095", BitsStored=12)
    np.testing.assert_allclose(unit * 4095, [[0, 2048], [4095, 2047]], atol=1e-3)
    signed = pixels_of(tmp_path, stored.view(np.int16), "-2048,2047", BitsStored=12)
    np.testing.assert_allclose(signed * 4095 - 2048, [[0, -2048], [-1, 2047]], atol=1e-3)


def test_monochrome1_is_inverted_at_the_end(tmp_path: Path) -> None:
    tags = {"WindowCenter": 4, "WindowWidth": 5}
    plain = pixels_of(tmp_path, GREY, **tags)
    inverted = pixels_of(tmp_path, GREY, PhotometricInterpretation="MONOCHROME1", **tags)
    assert np.array_equal(inverted, 1 - plain)


def test_tables_for_the_unit_and_for_the_display(tmp_path: Path) -> None:
    modality = table([100, 200, 300], 1, 16)
    unit = pixels_of(tmp_path, GREY, "100,300", ModalityLUTSequence=[modality])
    np.testing.assert_allclose(unit, [[0, 0, 0.5], [1, 1, 1]])
    voi = table([0, 51, 102, 255], 1, 8)
    shown = pixels_of(tmp_path, GREY, VOILUTSequence=[voi], WindowCenter=0, WindowWidth=2)
    np.testing.assert_allclose(shown, [[0, 0, 0.2], [0.4, 1, 1]], atol=1e-6)


def test_a_table_longer_than_its_entries_are_deep(tmp_path: Path) -> None:
    """pydicom wraps the index of such a table around at 256."""
    voi = table([number // 4 for number in range(1024)], 0, 8)
    stored = np.array([[0, 400], [800, 1023]], np.uint16)
    shown = pixels_of(tmp_path, stored, VOILUTSequence=[voi])
    np.testing.assert_allclose(shown, np.array([[0, 100], [200, 255]]) / 255, atol=1e-6)


def test_a_table_that_begins_below_zero_and_is_read_as_unsigned(tmp_path: Path) -> None:
    voi = table([0, 51, 102, 255], 2**16 - 2, 8)
    voi["LUTDescriptor"].VR = "US"
    stored = np.array([[-3, -2, -1], [0, 1, 2]], np.int16)
    shown = pixels_of(tmp_path, stored, VOILUTSequence=[voi])
    np.testing.assert_allclose(shown, [[0, 0, 0.2], [0.4, 1, 1]], atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "padding", "vr", "value"),
    [("i2", -2000, "US", 63536), ("u2", 63536, "SS", -2000), ("i1", -1, "US", 255)],
)
def test_padding_in_another_type_than_the_pixels(
    tmp_path: Path, dtype: str, padding: int, vr: str, value: int
) -> None:
    stored = np.full((20, 20), 100, dtype)
    stored[:, 10:] = 120
    stored[:5] = padding
    dataset = data_set(stored)
    dataset.add_new("PixelPaddingValue", vr, value)
    (image,) = open_dicom(write(tmp_path / "a", dataset), ReadingSettings()).images
    assert (image.pixels[10, 0], image.pixels[10, 15]) == (0, 1)


def test_padding_has_no_say_in_the_own_range(tmp_path: Path) -> None:
    stored = np.full((20, 20), 100, np.int16)
    stored[:, 10:] = 200
    stored[:5] = -2000
    unit = pixels_of(tmp_path, stored, PixelPaddingValue=-2000)
    assert unit[10, 0] == 0
    assert unit[10, 15] == 1
    assert unit[0, 0] == 0
    stored[5:8] = -1990
    limits = {"PixelPaddingValue": -2000, "PixelPaddingRangeLimit": -1980}
    assert pixels_of(tmp_path, stored, **limits)[10, 0] == 0
    assert pixels_of(tmp_path, stored)[10, 0] > 0.9


def test_float_pixels_and_values_that_are_none(tmp_path: Path) -> None:
    stored = np.array([[-1.5, 0.0], [np.nan, 1.5]], np.float32)
    np.testing.assert_allclose(pixels_of(tmp_path, stored, "-1.5,1.5"), [[0, 0.5], [0, 1]])
    own = pixels_of(tmp_path, stored)
    assert own[0, 1] == pytest.approx(0.5)
    assert own[1, 0] == 0


def test_one_bit_frames_that_start_inside_of_bytes(tmp_path: Path) -> None:
    masks = np.random.default_rng(0).integers(0, 2, (5, 1, 11), dtype=np.uint8)
    dataset = data_set(masks, BitsAllocated=1, BitsStored=1, HighBit=0)
    dataset.PixelData = np.packbits(masks.reshape(-1), bitorder="little").tobytes() + b"\0"
    case = opened(write(tmp_path / "a.dcm", dataset), window="0,1")
    assert case.kind == "frames"
    for frame, mask in zip(case.images, masks, strict=True):
        assert np.array_equal(frame.pixels, mask)


def test_palette_colours(tmp_path: Path) -> None:
    entries = np.array([[0, 0, 255], [10, 20, 30], [255, 0, 128]], np.uint16)
    tags = {}
    for column, colour in enumerate(("Red", "Green", "Blue")):
        tags[f"{colour}PaletteColorLookupTableDescriptor"] = [3, 1, 16]
        table = (entries[:, column] * 257).astype("<u2").tobytes()
        tags[f"{colour}PaletteColorLookupTableData"] = table
    stored = np.array([[0, 1, 2], [3, 4, 200]], np.uint8)
    unit = pixels_of(tmp_path, stored, PhotometricInterpretation="PALETTE COLOR", **tags)
    expected = entries[np.array([[0, 0, 1], [2, 2, 2]])] / 255
    np.testing.assert_allclose(unit, expected, atol=1e-6)


def test_palette_in_segments(tmp_path: Path) -> None:
    # 0, then a line to 300 in three steps, then both segments once more (from byte 0 on).
    codes = np.array([0, 1, 0, 1, 3, 300, 2, 2, 0, 0], "<u2").tobytes()
    tags = {}
    for colour in ("Red", "Green", "Blue"):
        tags[f"{colour}PaletteColorLookupTableDescriptor"] = [8, 0, 16]
        tags[f"Segmented{colour}PaletteColorLookupTableData"] = codes
    stored = np.arange(8, dtype=np.uint8).reshape(2, 4)
    unit = pixels_of(tmp_path, stored, PhotometricInterpretation="PALETTE COLOR", **tags)
    np.testing.assert_allclose(unit[..., 0] * 65535, [[0, 100, 200, 300]] * 2, atol=0.01)


def test_rgb_by_pixel_and_by_plane(tmp_path: Path) -> None:
    stored = np.random.default_rng(1).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    np.testing.assert_allclose(pixels_of(tmp_path, stored), stored / 255, atol=1e-6)
    dataset = data_set(stored, PlanarConfiguration=1)
    dataset.PixelData = stored.transpose(2, 0, 1).tobytes()
    case = opened(write(tmp_path / "b.dcm", dataset), window="lung")
    np.testing.assert_allclose(case.images[0].pixels, stored / 255, atol=1e-6)


def test_ybr_full_and_its_subsampled_form(tmp_path: Path) -> None:
    """Pure red is Y 76, Cb 85, Cr 255 (ITU-T T.871)."""
    red = np.tile(np.array([76, 85, 255], np.uint8), (2, 4, 1))
    unit = pixels_of(tmp_path, red, PhotometricInterpretation="YBR_FULL")
    np.testing.assert_allclose(unit, np.tile([1, 0, 0], (2, 4, 1)), atol=0.01)
    dataset = data_set(red, PhotometricInterpretation="YBR_FULL_422")
    full = opened(write(tmp_path / "full.dcm", dataset)).images[0].pixels
    assert np.array_equal(full, unit)
    dataset.PixelData = bytes([76, 76, 85, 255] * 4)
    halved = opened(write(tmp_path / "half.dcm", dataset)).images[0].pixels
    assert np.array_equal(halved, unit)


def test_deflated_files_and_files_without_a_head(tmp_path: Path) -> None:
    whole = save_dicom(tmp_path / "a.dcm", GREY, WindowCenter=4, WindowWidth=5)
    expected = opened(whole).images[0].pixels
    dataset = data_set(GREY, WindowCenter=4, WindowWidth=5)
    deflated = write(tmp_path / "b.dcm", dataset, DeflatedExplicitVRLittleEndian)
    assert np.array_equal(opened(deflated).images[0].pixels, expected)
    bare = tmp_path / "c"
    del dataset.file_meta
    dataset.save_as(bare, implicit_vr=True, little_endian=True)
    assert bare.read_bytes()[128:132] != b"DICM"
    assert is_dicom(bare)
    assert np.array_equal(opened(bare).images[0].pixels, expected)


def test_is_dicom_is_not_fooled(tmp_path: Path) -> None:
    for content in (b"", b"\x08\0", b"\x08\0" * 500, b"DICM" + bytes(500), b"BM" + bytes(500)):
        path = tmp_path / "a.dcm"
        path.write_bytes(content)
        assert not is_dicom(path), content[:8]
    assert not is_dicom(tmp_path / "nowhere")
    assert not is_dicom(tmp_path)


def test_identity_and_spacing(tmp_path: Path) -> None:
    path = save_dicom(tmp_path / "a.dcm", GREY, SOPInstanceUID="1.2.9", PixelSpacing=[2, 3])
    image = opened(path).images[0]
    assert image.identity.patient == "P1"
    assert image.identity.instance == "1.2.9"
    assert image.identity.series.startswith(image.identity.study)
    assert image.geometry.spacing_mm == (2, 3)
    assert image.geometry.affine_ras is None
    assert image.source == str(path)


@pytest.mark.parametrize(
    ("tags", "spacing"),
    [
        ({"ImagerPixelSpacing": [0.3, 0.6]}, None),
        (
            {"ImagerPixelSpacing": [0.3, 0.6], "EstimatedRadiographicMagnificationFactor": 1.5},
            (0.2, 0.4),
        ),
        (
            {"ImagerPixelSpacing": [0.3, 0.6], "EstimatedRadiographicMagnificationFactor": 0},
            None,
        ),
        ({"ImagerPixelSpacing": [0.3, 0.6], "PixelSpacing": [0.25, 0.5]}, (0.25, 0.5)),
        ({"ImagerPixelSpacing": [0.3, 0.6], "PixelSpacing": [0.3, 0.6]}, None),
        (
            {
                "ImagerPixelSpacing": [0.3, 0.6],
                "PixelSpacing": [0.3, 0.6],
                "PixelSpacingCalibrationType": "GEOMETRY",
            },
            (0.3, 0.6),
        ),
        ({"NominalScannedPixelSpacing": [0.3, 0.6]}, None),
    ],
)
def test_spacing_at_the_detector_is_not_the_patients(
    tmp_path: Path, tags: dict[str, object], spacing: tuple[float, float] | None
) -> None:
    (image,) = opened(save_dicom(tmp_path / "a", GREY, Modality="DX", **tags)).images
    assert image.geometry.spacing_mm == (spacing and pytest.approx(spacing))


def test_a_slice_with_a_place_has_its_own_spacing(tmp_path: Path) -> None:
    tags = place((0.0, 0.0, 0.0), AXIAL, (0.5, 2.0))
    (image,) = opened(save_dicom(tmp_path / "a", GREY, ImagerPixelSpacing=[0.5, 2], **tags)).images
    assert image.geometry.spacing_mm == (0.5, 2.0)


def test_dot_in_a_monochrome1_file(tmp_path: Path) -> None:
    stored = np.full((31, 45), 4000, np.uint16)
    stored[20, 7] = 10
    tags = place((-50.0, 30.0, 12.0), AXIAL, (0.5, 2.0))
    path = save_dicom(tmp_path / "a", stored, PhotometricInterpretation="MONOCHROME1", **tags)
    image = opened(path, window="0,4000").images[0]
    row, column = np.unravel_index(image.pixels.argmax(), image.size_hw)
    assert (row, column) == (20, 7)
    # LPS: x = -50 + 7 * 2, y = 30 + 20 * 0.5; right and anterior are their negatives.
    found = image.geometry.affine_ras @ (0, row, column, 1)
    np.testing.assert_allclose(found, (36, -40, 12, 1))
    assert image.geometry.orientation == "SPL"
    assert image.geometry.spacing_mm == (0.5, 2.0)


def test_enhanced_file_is_a_volume_sorted_by_place(tmp_path: Path) -> None:
    stack = np.full((3, 4, 6), 500, np.uint16)
    stack[1, 2, 5] = 1500
    path = save_enhanced(tmp_path / "a.dcm", stack, [(0, 0, 9), (0, 0, 3), (0, 0, 6)])
    case = opened(path)
    assert case.kind == "volume"
    assert [image.source[-3:] for image in case.images] == ["[1]", "[2]", "[0]"]
    # Frame 1: 1500 - 999 = 501 of a window -500.5..500.5 (w = 1002, LINEAR).
    first = case.images[0]
    assert first.pixels[2, 5] == 1
    assert first.pixels[0, 0] == pytest.approx((-499 + 500.5) / 1001, abs=1e-6)
    np.testing.assert_allclose(first.geometry.affine_ras @ (0, 2, 5, 1), (-1.25, -1, 3, 1))
    np.testing.assert_allclose(case.grid.affine_ras @ (5, 2, 0, 1), (-1.25, -1, 3, 1))
    assert case.grid.shape == (6, 4, 3)


def test_enhanced_file_with_a_place_held_twice_is_frames(tmp_path: Path) -> None:
    stack = np.zeros((3, 4, 6), np.uint16)
    path = save_enhanced(tmp_path / "a.dcm", stack, [(0, 0, 3), (0, 0, 3), (0, 0, 6)])
    case = opened(path)
    assert case.kind == "frames"
    assert case.grid is None
    assert len(case.images) == 3


def test_clip_is_read_frame_by_frame(tmp_path: Path) -> None:
    clip = np.arange(4 * 8, dtype=np.uint8).reshape(4, 2, 4) * 7
    case = opened(save_dicom(tmp_path / "a.dcm", clip, Modality="US"), window="0,217")
    assert case.kind == "frames"
    for number, image in enumerate(case.images):
        np.testing.assert_allclose(image.pixels * 217, clip[number], atol=1e-4)
        assert image.source.endswith(f"[{number}]")


def test_missing_tags_are_filled_in(tmp_path: Path) -> None:
    few = dict.fromkeys(("BitsStored", "PixelRepresentation", "SamplesPerPixel", "PatientID"))
    unit = pixels_of(tmp_path, GREY, "0,10", PhotometricInterpretation=None, **few)
    np.testing.assert_allclose(unit, GREY / 10, atol=1e-6)


def test_damaged_geometry_is_no_geometry(tmp_path: Path) -> None:
    tags = place((0, 0, 0), (1, 0, 0, 1, 0, 0))
    image = opened(save_dicom(tmp_path / "a.dcm", GREY, **tags)).images[0]
    assert image.geometry.affine_ras is None
    assert image.geometry.spacing_mm == (1, 1)


def test_refusals_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(InputError) as caught:
            list(opened(path).images)
        assert str(caught.value).startswith(str(path))
        return str(caught.value)

    report = data_set(GREY, Modality="SR", Rows=None)
    del report.PixelData
    assert "no pixels (SR)" in refusal(write(tmp_path / "sr.dcm", report))
    short = save_dicom(tmp_path / "short.dcm", np.zeros((64, 64), np.uint16))
    short.write_bytes(short.read_bytes()[:-100])
    assert "ends early" in refusal(short)
    short.write_bytes(short.read_bytes()[:-8104])
    assert "ends before its pixels" in refusal(short)
    huge = save_dicom(tmp_path / "huge.dcm", GREY, Rows=60000, Columns=60000)
    assert f"{MAX_PIXELS // 10**6} million" in refusal(huge)
    many = save_dicom(tmp_path / "many.dcm", GREY, NumberOfFrames=2**15)
    assert "ends early" in refusal(many)
    film = data_set(GREY)
    film.PixelData = b"\xfe\xff\0\xe0\0\0\0\0\xfe\xff\0\xe0\x04\0\0\0abcd"
    film["PixelData"].is_undefined_length = True
    assert "MPEG2" in refusal(write(tmp_path / "film.dcm", film, "1.2.840.10008.1.2.4.100"))
    path = save_compressed(tmp_path / "jls.dcm", np.zeros((8, 8), np.uint8), JPEGLSLossless)
    assert len(list(opened(path).images)) == 1
    monkeypatch.setattr(JPEGLSLosslessDecoder, "_available", {})
    assert "pip install 'recap-ad[dicom]'" in refusal(path)
    with pytest.raises(SettingsError, match="window"):
        opened(path, window="liver")


def test_warnings_of_pydicom_do_not_reach_the_user(tmp_path: Path) -> None:
    path = save_dicom(tmp_path / "a.dcm", GREY, SeriesInstanceUID="1.2.777")
    path.write_bytes(path.read_bytes().replace(b"1.2.777", b"no uid!"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert opened(path).images[0].identity.series == "no uid!"
    assert not caught
    with pytest.warns(UserWarning, match="no uid!"):
        assert pydicom.dcmread(path).SeriesInstanceUID
