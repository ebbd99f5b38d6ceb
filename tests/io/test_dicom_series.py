import math
from pathlib import Path

import numpy as np
import pytest

from dicom_files import SERIES, data_set, place, save_dicom, save_series, write
from recap.config import ReadingSettings
from recap.errors import InputError
from recap.io.case import Case
from recap.io.dicom.cases import open_dicom
from recap.io.dicom.series import Series, group_series, open_series

STACK = np.random.default_rng(0).integers(0, 1000, (6, 5, 7)).astype(np.int16)


def opened(series: Series, **reading: object) -> Case:
    return open_series(series, ReadingSettings(**reading))


def test_shuffled_slices_are_sorted_by_place(tmp_path: Path) -> None:
    paths = save_series(tmp_path, STACK)
    (series,) = group_series(list(reversed(paths)))
    assert series.files == tuple(paths)
    assert list(series.files) != sorted(paths)
    assert series.skipped == ""
    case = opened(series, window="0,1000")
    assert case.kind == "volume"
    assert case.identity.series == SERIES
    assert case.identity.instance == ""
    for number, image in enumerate(case.images):
        np.testing.assert_allclose(image.pixels * 1000, STACK[number], atol=1e-3)
        assert image.source == str(paths[number])
        assert image.identity.instance == f"{SERIES}.{number + 1}"
    assert Path(series.name).parent == tmp_path


def test_grid_brings_maps_back(tmp_path: Path) -> None:
    (series,) = group_series(save_series(tmp_path, STACK))
    grid = opened(series).grid
    assert grid.shape == (7, 5, 6)
    assert np.array_equal(grid.restore(STACK), STACK.transpose(2, 1, 0))
    expected = np.diag([-1.0, -1.0, 2.0, 1.0])
    expected[:3, 3] = (10, 20, -30)
    np.testing.assert_allclose(grid.affine_ras, expected)


def test_dot_in_an_oblique_series(tmp_path: Path) -> None:
    """Expected places by the formula of PS3.3 C.7.6.2.1.1, one pixel at a time."""
    turn, tilt = 0.4, 0.3
    along_row = np.array([math.cos(turn), math.sin(turn), 0.0])
    along_column = np.array(
        [-math.sin(turn) * math.cos(tilt), math.cos(turn) * math.cos(tilt), math.sin(tilt)]
    )
    normal = np.cross(along_row, along_column)
    origin, row_mm, column_mm, gap_mm = np.array([-40.0, 25.0, 7.0]), 1.5, 0.8, 2.5
    stack = np.zeros((6, 21, 30), np.int16)
    dot = (4, 17, 3)
    stack[dot] = 1000
    paths = [
        save_dicom(
            tmp_path / f"{9 - number}.dcm",
            pixels,
            Modality="MR",
            **place(
                origin + number * gap_mm * normal,
                [*along_row, *along_column],
                (row_mm, column_mm),
            ),
        )
        for number, pixels in enumerate(stack)
    ]
    lps = origin + dot[0] * gap_mm * normal
    lps = lps + dot[1] * row_mm * along_column + dot[2] * column_mm * along_row
    expected = [-lps[0], -lps[1], lps[2], 1]
    (series,) = group_series(paths)
    for axis in ("auto", "axial", "coronal", "sagittal"):
        case = opened(series, axis=axis, window="0,1000")
        shown = np.stack([image.pixels for image in case.images])
        number, row, column = np.unravel_index(shown.argmax(), shown.shape)
        found = case.images[int(number)].geometry.affine_ras @ (0, row, column, 1)
        np.testing.assert_allclose(found, expected, atol=1e-4)
        stored = case.grid.restore(shown)
        ijk = np.unravel_index(stored.argmax(), stored.shape)
        assert ijk == (dot[2], dot[1], dot[0])
        np.testing.assert_allclose(case.grid.affine_ras @ (*ijk, 1), expected, atol=1e-4)
    assert case.images[0].geometry.orientation == "LIP"


def test_other_axes_hold_the_same_values(tmp_path: Path) -> None:
    tags = {"RescaleSlope": 2, "RescaleIntercept": -100, "WindowCenter": 500, "WindowWidth": 1001}
    (series,) = group_series(save_series(tmp_path, STACK, **tags))
    case = opened(series, axis="coronal")
    assert case.kind == "volume"
    assert len(case.images) == 5
    # Coronal: slices from front to back are rows; rows from head to feet are slices backwards.
    expected = np.clip((STACK[::-1, 2].astype(float) * 2 - 100) / 1000, 0, 1)
    np.testing.assert_allclose(case.images[2].pixels, expected, atol=1e-3)
    axial = opened(series, axis="axial")
    for cut, acquired in zip(axial.images, opened(series).images, strict=True):
        np.testing.assert_allclose(cut.pixels, acquired.pixels, atol=1e-6)


def test_inverted_series_stay_inverted_when_cut(tmp_path: Path) -> None:
    tags = {"PhotometricInterpretation": "MONOCHROME1"}
    (series,) = group_series(save_series(tmp_path, STACK, **tags))
    cut = opened(series, axis="sagittal", window="0,1000").images[0].pixels
    assert cut[0, 0] == pytest.approx(1 - STACK[-1, 0, 0] / 1000, abs=1e-6)


def test_one_own_range_for_the_whole_series(tmp_path: Path) -> None:
    """An almost empty slice must not be blown up to full contrast."""
    stack = np.zeros((3, 20, 20), np.uint16)
    stack[1, :10] = 1000
    stack[2, 0, 0] = 3
    (series,) = group_series(save_series(tmp_path, stack, Modality="PT"))
    shown = [image.pixels.max() for image in opened(series).images]
    assert shown == pytest.approx([0, 1, 0.003])
    cut = opened(series, axis="axial").images
    assert [image.pixels.max() for image in cut] == pytest.approx(shown)


def test_slices_of_a_pet_have_slopes_of_their_own(tmp_path: Path) -> None:
    paths = [
        save_dicom(
            tmp_path / f"{number}",
            np.full((4, 4), 100, np.uint16),
            Modality="PT",
            RescaleSlope=number + 1,
            RescaleIntercept=0,
            **place((0, 0, number)),
        )
        for number in range(4)
    ]
    (series,) = group_series(paths)
    for axis in ("auto", "axial"):
        shown = [image.pixels[0, 0] for image in opened(series, axis=axis, window="0,400").images]
        assert shown == pytest.approx([0.25, 0.5, 0.75, 1])


@pytest.mark.parametrize(
    ("places", "kind"),
    [
        ((0, 2, 4.05, 5.95, 8), "volume"),
        ((0, 2, 4, 8, 10), "frames"),
        ((0, 2, 3, 6, 8), "frames"),
        ((0, 1, 2, 3, 40), "frames"),
    ],
)
def test_uneven_gaps(tmp_path: Path, places: tuple[float, ...], kind: str) -> None:
    paths = [
        save_dicom(tmp_path / f"{i}", STACK[i], Modality="CT", **place((0, 0, mm)))
        for i, mm in enumerate(places)
    ]
    (series,) = group_series(paths)
    case = opened(series)
    assert case.kind == kind
    assert (case.grid is None) == (kind == "frames")
    assert [image.source for image in case.images] == [str(path) for path in paths]


def test_localisers_do_not_break_a_series(tmp_path: Path) -> None:
    paths = save_series(tmp_path, STACK)
    scout = save_dicom(
        tmp_path / "A0",
        np.zeros((5, 7), np.int16),
        Modality="CT",
        ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"],
        **place((0, 0, 0), (0, 1, 0, 0, 0, -1)),
    )
    large = save_dicom(
        tmp_path / "A1", np.zeros((9, 9), np.int16), Modality="CT", **place((0,) * 3)
    )
    series = group_series([*paths, scout, large])
    assert {each.files for each in series} == {tuple(paths), (scout,), (large,)}
    assert [opened(each).kind for each in series] == ["image", "image", "volume"]


def test_echoes_are_parted_and_named(tmp_path: Path) -> None:
    paths = [
        save_dicom(
            tmp_path / f"{number:02d}",
            np.full((4, 4), echo * 100 + number, np.uint16),
            Modality="MR",
            SeriesNumber=5,
            EchoTime=10.0 + echo,
            InstanceNumber=2 * number + echo,
            **place((0, 0, 3.0 * number)),
        ).rename(tmp_path / f"{echo}{number:02d}")
        for echo in range(2)
        for number in range(4)
    ]
    first, second = group_series(paths)
    assert (first.files, second.files) == (tuple(paths[:4]), tuple(paths[4:]))
    assert [Path(each.name).name for each in (first, second)] == ["series-5-1", "series-5-2"]
    assert opened(second).kind == "volume"


@pytest.mark.parametrize("phase_first", [True, False])
def test_phases_without_a_tag_are_parted_by_number(tmp_path: Path, phase_first: bool) -> None:
    for phase in range(3):
        for number in range(4):
            order = phase * 4 + number if phase_first else number * 3 + phase
            save_dicom(
                tmp_path / f"{order:03d}",
                np.full((2, 2), 10 * phase + number, np.uint16),
                Modality="CT",
                InstanceNumber=order,
                **place((0, 0, number)),
            )
    series = group_series(list(tmp_path.iterdir()))
    assert len(series) == 3
    for phase, each in enumerate(series):
        shown = [image.pixels[0, 0] * 100 for image in opened(each, window="0,100").images]
        assert shown == pytest.approx([10 * phase + number for number in range(4)])


def test_a_tag_that_would_tear_volumes_apart_does_not_part_them(tmp_path: Path) -> None:
    """Acquisitions 2 and 3 share the second phase, so that acquisitions are not phases."""
    for order, (acquisition, mm) in enumerate([(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 2)]):
        tags = {"Modality": "CT", "AcquisitionNumber": acquisition, "InstanceNumber": order}
        save_dicom(tmp_path / f"{order}", STACK[order], **tags, **place((0, 0, mm)))
    series = group_series(list(tmp_path.iterdir()))
    assert [[path.name for path in each.files] for each in series] == [list("012"), list("345")]


def test_unequal_phases_and_clips_are_frames(tmp_path: Path) -> None:
    for order, mm in enumerate((0, 1, 2, 0, 1)):
        tags = {"Modality": "MR", "InstanceNumber": order, **place((0, 0, mm))}
        save_dicom(tmp_path / "phases" / f"{order}", STACK[order], **tags)
    for order in range(3):
        tags = {"Modality": "MR", "InstanceNumber": 9 - order, **place((0, 0, 0))}
        save_dicom(tmp_path / "cine" / f"{order}", STACK[order], **tags)
    for folder in ("phases", "cine"):
        (series,) = group_series(list((tmp_path / folder).iterdir()))
        assert opened(series).kind == "frames"
    assert [path.name for path in series.files] == ["2", "1", "0"]


def test_slices_without_a_place_go_by_number(tmp_path: Path) -> None:
    for order in (3, 1, 2):
        save_dicom(tmp_path / f"{9 - order}", STACK[order], Modality="CT", InstanceNumber=order)
    (series,) = group_series(list(tmp_path.iterdir()))
    assert [path.name for path in series.files] == ["8", "7", "6"]
    assert opened(series).kind == "frames"


def test_independent_images_stay_alone(tmp_path: Path) -> None:
    paths = [save_dicom(tmp_path / f"{i}", STACK[i], Modality="DX") for i in range(3)]
    clip = save_dicom(tmp_path / "clip", STACK, Modality="CT")
    series = group_series([*paths, clip])
    assert [each.files for each in series] == [(path,) for path in [*paths, clip]]
    assert [each.name for each in series] == [str(path) for path in [*paths, clip]]
    assert [opened(each).kind for each in series] == ["image"] * 3 + ["frames"]


def test_a_window_of_width_one_is_a_threshold_in_every_cut(tmp_path: Path) -> None:
    limit = int(np.median(STACK))
    tags = {"WindowCenter": limit + 0.5, "WindowWidth": 1}
    (series,) = group_series(save_series(tmp_path, STACK, **tags))
    for axis in ("auto", "coronal"):
        case = opened(series, axis=axis)
        shown = np.stack([image.pixels for image in case.images])
        assert np.unique(shown).tolist() == [0, 1]
        assert shown.sum() == np.count_nonzero(limit < STACK)


def test_what_is_no_image_is_skipped_and_what_is_damaged_fails_later(tmp_path: Path) -> None:
    slices = save_series(tmp_path / "ct", STACK)
    report = data_set(STACK[0], Modality="SR", Rows=None)
    del report.PixelData
    sr = write(tmp_path / "sr", report)
    mask = save_dicom(tmp_path / "seg", STACK[0], Modality="SEG")
    copied = tmp_path / "ct" / "Z"
    copied.write_bytes(slices[2].read_bytes())
    bad = tmp_path / "bad"
    bad.write_bytes(b"\0" * 128 + b"DICM" + b"nonsense" * 9)
    series = {each.files: each for each in group_series([*slices, sr, mask, copied, bad])}
    assert len(series) == 5
    assert "no pixels (SR)" in series[(sr,)].skipped
    assert "segmentation" in series[(mask,)].skipped
    assert series[(copied,)].skipped == f"a copy of {slices[2]}."
    assert not series[(bad,)].skipped
    with pytest.raises(InputError, match=str(bad)):
        opened(series[(bad,)])
    with pytest.raises(InputError, match="no pixels"):
        opened(series[(sr,)])


def test_header_only_reading_leaves_a_cut_slice_to_be_an_error(tmp_path: Path) -> None:
    paths = save_series(tmp_path, STACK)
    paths[3].write_bytes(paths[3].read_bytes()[:-10])
    (series,) = group_series(paths)
    case = opened(series)
    assert len(case.images[2].pixels) == 5
    with pytest.raises(InputError, match=paths[3].name):
        case.images[3]


def test_series_of_two_studies_do_not_mix(tmp_path: Path) -> None:
    first = save_series(tmp_path / "a", STACK)
    second = save_series(tmp_path / "b", STACK, StudyInstanceUID="1.2.3", SeriesInstanceUID="1.2.4")
    series = group_series([*second, *first])
    assert [each.files for each in series] == [tuple(first), tuple(second)]


@pytest.mark.parametrize("keyword", ["PatientID", "IssuerOfPatientID"])
def test_patients_with_the_same_uids_do_not_mix(tmp_path: Path, keyword: str) -> None:
    """Also where the slices of one would continue, or repeat, those of the other."""
    for number, pixels in enumerate(STACK):
        tags = place((0.0, 0.0, 2.0 * number))
        who = {"PatientID": "P1", keyword: "A" if number < 4 else "B"}
        save_dicom(tmp_path / f"{number}.dcm", pixels, Modality="CT", **tags, **who)
    tags = {"PatientID": "P1", keyword: "B", "SOPInstanceUID": f"{SERIES}.1"}
    save_dicom(tmp_path / "6.dcm", STACK[0], Modality="CT", **place((0.0, 0.0, 12.0)), **tags)
    found = group_series(sorted(tmp_path.iterdir()))
    assert [[path.stem for path in each.files] for each in found] == [list("0123"), list("456")]
    assert len({each.name for each in found}) == 2
    assert [opened(each).kind for each in found] == ["volume", "volume"]


def test_a_slice_of_another_size_is_named(tmp_path: Path) -> None:
    paths = save_series(tmp_path, STACK)
    (series,) = group_series(paths)
    save_dicom(paths[1], np.zeros((3, 3), np.int16), Modality="CT")
    with pytest.raises(InputError, match="other slices"):
        opened(series).images[1]


def test_a_slide_in_dicom_is_refused_once_and_its_label_is_left_alone(tmp_path: Path) -> None:
    kinds = {
        "level0": ("ORIGINAL", "PRIMARY", "VOLUME", "NONE"),
        "level1": ("DERIVED", "PRIMARY", "VOLUME", "RESAMPLED"),
        "thumbnail": ("DERIVED", "PRIMARY", "THUMBNAIL", "RESAMPLED"),
        "label": ("ORIGINAL", "PRIMARY", "LABEL", "NONE"),
        "overview": ("ORIGINAL", "PRIMARY", "OVERVIEW", "NONE"),
    }
    tiles = np.zeros((6, 8, 8, 3), np.uint8)
    paths = [
        save_dicom(
            tmp_path / f"{name}.dcm",
            tiles if "level" in name else tiles[0],
            SOPClassUID="1.2.840.10008.5.1.4.1.1.77.1.6",
            Modality="SM",
            ImageType=list(kind),
        )
        for name, kind in kinds.items()
    ]
    found = {each.files[0].stem: each for each in group_series(paths)}
    assert [name for name, each in found.items() if not each.skipped] == ["level0"]
    assert "label" in found["label"].skipped
    for name in kinds:
        with pytest.raises(InputError, match="whole slide" if "level" in name else "picture|copy"):
            open_dicom(tmp_path / f"{name}.dcm", ReadingSettings())
    with pytest.raises(InputError, match="vips tiffsave"):
        open_series(found["level0"], ReadingSettings())
    # A field of view is a picture, whatever it was taken with.
    field = {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.77.1.6", "Modality": "SM"}
    for names in ({}, {"ImageType": list(kinds["level0"])}):
        path = save_dicom(tmp_path / "field.dcm", tiles[0], **field, **names)
        assert open_dicom(path, ReadingSettings()).kind == "image"
