"""The files that pydicom is tested with: real, odd and broken ones."""

import warnings
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.pixels import apply_modality_lut, apply_voi_lut, get_decoder

from dicom_files import pydicom_data_files, pydicom_files
from recap.config import ReadingSettings
from recap.errors import InputError
from recap.io.dicom.cases import is_dicom, open_dicom
from recap.io.dicom.file import open_file
from recap.io.dicom.series import group_series, open_series

READING = ReadingSettings()
# What has pixels and is refused, with the reason.
REFUSED = {
    "JPEG-lossy.dcm": "pip install pylibjpeg-libjpeg",
    "JPGExtended.dcm": "pip install pylibjpeg-libjpeg",
    "JPEG2000-embedded-sequence-delimiter.dcm": "a compressed frame of 1024x3722445056",
    "MR_truncated.dcm": "ends early",
    "meta_missing_tsyntax.dcm": "names no size",
    "nested_priv_SQ.dcm": "names no size",
    "badVR.dcm": "holds the bytes of 15 frames",
}


def outcome(path: Path) -> str:
    """What reading all frames ends in: "" or the reason of the refusal."""
    try:
        for image in open_dicom(path, READING).images:
            assert image.pixels.dtype == np.float32
            assert image.pixels.ndim == 2 or image.pixels.shape[2] == 3
            assert 0 <= image.pixels.min() <= image.pixels.max() <= 1
    except InputError as error:
        return str(error).removeprefix(f"{path}: ")
    return ""


def outcomes(paths: list[Path]) -> dict[str, dict[str, str]]:
    """Names by what became of them; all refusals are one line."""
    found: dict[str, dict[str, str]] = {"read": {}, "refused": {}, "no pixels": {}}
    for path in filter(is_dicom, paths):
        reason = outcome(path)
        assert "\n" not in reason
        no_pixels = "holds no pixels" in reason or "DICOMDIR" in reason
        found["no pixels" if no_pixels else "refused" if reason else "read"][path.name] = reason
    return found


def test_every_file_of_pydicom_reads_or_says_why_not() -> None:
    found = outcomes(pydicom_files())
    assert found["refused"].keys() == REFUSED.keys()
    for name, reason in found["refused"].items():
        assert REFUSED[name] in reason
    assert len(found["read"]) >= 75
    assert len(found["no pixels"]) >= 30


@pytest.mark.slow
@pytest.mark.network
def test_every_further_file_of_pydicom_reads() -> None:
    found = outcomes(pydicom_data_files())
    assert len(found["read"]) == 68
    assert not found["refused"]
    assert not found["no pixels"]


def by_pydicom(path: Path) -> np.ndarray | None:
    """The grey pipeline of pydicom, brought to 0..1; None for what it has no window for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = pydicom.dcmread(path)
        if not dataset.get("PhotometricInterpretation", "").startswith("MONOCHROME"):
            return None
        if not dataset.get("WindowWidth") or dataset.get("NumberOfFrames"):
            return None
        shown = apply_voi_lut(apply_modality_lut(dataset.pixel_array, dataset), dataset)
        low, high = apply_voi_lut(np.array([-1e9, 1e9]), dataset)
    unit = (shown - low) / (high - low)
    return 1 - unit if dataset.PhotometricInterpretation == "MONOCHROME1" else unit


def test_windows_are_those_of_pydicom() -> None:
    compared = 0
    for path in filter(is_dicom, pydicom_files()):
        if path.name in REFUSED or "DICOMDIR" in path.name or outcome(path):
            continue
        expected = by_pydicom(path)
        if expected is not None:
            compared += 1
            shown = open_dicom(path, READING).images[0].pixels
            np.testing.assert_allclose(shown, expected, atol=1e-5, err_msg=path.name)
    assert compared >= 40


@pytest.mark.slow
@pytest.mark.network
def test_frames_are_those_of_all_other_decoders() -> None:
    """gdcm serves as the judge of intact files only: on damaged ones it aborts."""
    compared: dict[str, int] = {}
    for path in filter(is_dicom, [*pydicom_files(), *pydicom_data_files()]):
        if path.stat().st_size > 2**20 or path.name in REFUSED or outcome(path):
            continue
        file = open_file(path)
        if not file.layout.encapsulated:
            continue
        last = file.layout.frames - 1
        decoder = get_decoder(file.layout.syntax)
        for plugin in decoder.available_plugins:
            if plugin == "pillow" or path.name.endswith("too_short.dcm"):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dataset = pydicom.dcmread(path)
                expected, _ = decoder.as_array(dataset, index=last, decoding_plugin=plugin)
            assert np.array_equal(file.stored(last), expected), (path.name, plugin)
            compared[plugin] = compared.get(plugin, 0) + 1
    assert compared["gdcm"] >= 30
    assert compared["pylibjpeg"] >= 15


def test_studies_of_the_dicomdir_examples() -> None:
    folder = next(path for path in pydicom_files() if path.name == "6154").parents[2]
    paths = [path for path in folder.glob("[79D]*/**/*") if path.is_file()]
    paths += folder.glob("DICOMDIR*")
    series = group_series(paths)
    skipped = [each for each in series if each.skipped]
    assert len(skipped) == 7
    assert all("DICOMDIR" in each.skipped for each in skipped)
    cases = [open_series(each, READING) for each in series if not each.skipped]
    assert sum(len(case.images) for case in cases) == len(paths) - len(skipped)
    kinds = sorted(case.kind for case in cases)
    volumes = [case for case in cases if case.kind == "volume"]
    assert (len(volumes), kinds.count("frames")) == (1, 1)
    for case in volumes:
        assert len({image.source for image in case.images}) == len(case.images)
        steps = np.diff([image.geometry.affine_ras[:3, 3] for image in case.images], axis=0)
        assert np.allclose(steps, steps[0])
