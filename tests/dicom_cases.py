"""Cases out of DICOM files with one bright dot in their map, where it lies, and results of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pydicom

from dicom_files import item, place, pydicom_files, save_dicom, save_enhanced, save_series
from recap.config import ReadingSettings
from recap.io import open_file
from recap.io.case import Case
from recap.io.dicom.series import group_series, open_series
from recap.scoring.regions import case_regions
from recap.types import Decision, Prediction

LEVEL, PEAK = 0.5, 0.875
FRAME_OF_REFERENCE = "1.2.826.0.1.3680043.8.498.9"
DECISION = Decision(True, "score at least 0.5 (5 % of normal images)", 0.02, 0.9)
WHO = {
    "PatientName": "Müller^Änne",
    "PatientID": "4711",
    "PatientBirthDate": "19500102",
    "PatientSex": "F",
    "StudyDate": "20240102",
    "StudyTime": "101112",
    "StudyID": "S1",
    "AccessionNumber": "A1",
    "SpecificCharacterSet": "ISO_IR 100",
    "SeriesNumber": 3,
}


@dataclass(frozen=True)
class Dotted:
    """A case, its results, and the source pixel of the dot: file, frame, row, column."""

    case: Case
    prediction: Prediction
    file: Path
    frame: int
    row: int
    column: int
    in_volume: bool

    @property
    def arguments(self) -> dict:
        return {
            "regions": case_regions(self.case, self.prediction.map, LEVEL),
            "decision": DECISION,
            "level": LEVEL,
        }

    def patient_mm(self) -> np.ndarray:
        """The dot by the formula of PS3.3 C.7.6.2.1.1, from the tags themselves."""
        header = pydicom.dcmread(self.file, stop_before_pixels=True)
        if "PerFrameFunctionalGroupsSequence" in header:
            shared = header.SharedFunctionalGroupsSequence[0]
            own = header.PerFrameFunctionalGroupsSequence[self.frame]
            origin = own.PlanePositionSequence[0].ImagePositionPatient
            turned = own if "PlaneOrientationSequence" in own else shared
            cosines = turned.PlaneOrientationSequence[0].ImageOrientationPatient
            measured = own if "PixelMeasuresSequence" in own else shared
            spacing = measured.PixelMeasuresSequence[0].PixelSpacing
        else:
            origin, cosines = header.ImagePositionPatient, header.ImageOrientationPatient
            spacing = header.PixelSpacing
        origin, cosines = np.array(origin, float), np.array(cosines, float)
        along_row, along_column = cosines[:3], cosines[3:]
        step = float(spacing[1]) * self.column * along_row
        return origin + step + float(spacing[0]) * self.row * along_column


def _dotted(case: Case, files: list[Path], frame: int, row: int, column: int) -> Dotted:
    """Put the dot on an image of the case (or a slice of the volume as stored)."""
    size_hw = case.images[0].size_hw
    if case.grid is None:
        maps = np.full((len(case.images), *size_hw), 0.1, np.float32)
        maps[frame, row, column] = PEAK
    else:
        stored = np.full(case.grid.shape, 0.1, np.float32)  # column, row, slice
        stored[column, row, frame] = PEAK
        maps = case.grid.take(stored)
    path, number = case.dicom_frames[frame]
    assert path in files
    images = tuple(Prediction(float(map.max()), map) for map in maps)
    whole = maps[0] if case.kind == "image" else maps
    prediction = Prediction(PEAK, whole, images=images)
    return Dotted(case, prediction, path, number, row, column, case.grid is not None)


def _single(name: str) -> Callable[[Path], Dotted]:
    def make(folder: Path) -> Dotted:
        (path,) = (file for file in pydicom_files() if file.name == name)
        case = open_file(path, ReadingSettings())
        height, width = case.images[0].size_hw
        return _dotted(case, [path], 0, height // 4, width - 5)

    return make


def oblique(folder: Path, **reading: str) -> Dotted:
    turn, tilt = 0.4, 0.3
    row = np.array([math.cos(turn), math.sin(turn), 0.0])
    column = np.array(
        [-math.sin(turn) * math.cos(tilt), math.cos(turn) * math.cos(tilt), math.sin(tilt)]
    )
    normal = np.cross(row, column)
    stack = np.random.default_rng(1).integers(0, 900, (6, 21, 30)).astype(np.int16)
    paths = [
        save_dicom(
            folder / f"{9 - number}.dcm",
            pixels,
            Modality="MR",
            SOPClassUID="1.2.840.10008.5.1.4.1.1.4",
            FrameOfReferenceUID=FRAME_OF_REFERENCE,
            SliceThickness=2.0,
            **place(
                [round(value, 6) for value in [-40.0, 25.0, 7.0] + number * 2.5 * normal],
                [round(value, 8) for value in (*row, *column)],
                (1.5, 0.8),
            ),
            **WHO,
        )
        for number, pixels in enumerate(stack)
    ]
    (series,) = group_series(paths)
    return _dotted(open_series(series, ReadingSettings(**reading)), paths, 4, 17, 3)


def coronal_cut(folder: Path) -> Dotted:
    return oblique(folder, axis="coronal")


def enhanced(folder: Path) -> Dotted:
    """A multi-frame file whose frames are not stored by place."""
    stack = np.random.default_rng(2).integers(0, 900, (5, 12, 16)).astype(np.int16)
    places = [(-8.0, -6.0, z) for z in (4.0, 0.0, 8.0, 2.0, 6.0)]
    path = save_enhanced(folder / "enhanced.dcm", stack, places)
    dataset = pydicom.dcmread(path)
    dataset.FrameOfReferenceUID = FRAME_OF_REFERENCE
    dataset.update(item(**WHO))
    dataset.save_as(path)
    return _dotted(open_file(path, ReadingSettings()), [path], 3, 2, 13)


def survey(folder: Path) -> Dotted:
    """A multi-frame file of three planes: each frame has its own orientation and pixel size."""
    stack = np.random.default_rng(6).integers(0, 900, (3, 12, 16)).astype(np.int16)
    places = [(-8.0, -6.0, 4.0), (-7.0, 3.0, 9.0), (1.0, -5.0, 8.0)]
    planes = {
        "axial": ((1, 0, 0, 0, 1, 0), (0.5, 0.25), 3.0),
        "coronal": ((1, 0, 0, 0, 0, -1), (0.75, 0.5), 4.0),
        "sagittal": ((0, 1, 0, 0, 0, -1), (1.5, 1.25), 5.0),
    }
    path = save_enhanced(folder / "survey.dcm", stack, places)
    dataset = pydicom.dcmread(path)
    dataset.FrameOfReferenceUID = FRAME_OF_REFERENCE
    dataset.update(item(**WHO))
    frames = dataset.PerFrameFunctionalGroupsSequence
    for frame, (cosines, spacing, thickness) in zip(frames, planes.values(), strict=True):
        measures = item(PixelSpacing=list(spacing), SliceThickness=thickness)
        frame.PlaneOrientationSequence = [item(ImageOrientationPatient=list(cosines))]
        frame.PixelMeasuresSequence = [measures]
    dataset.save_as(path)
    return _dotted(open_file(path, ReadingSettings()), [path], 2, 7, 11)


def inverted(folder: Path) -> Dotted:
    """A MONOCHROME1 series."""
    stack = np.random.default_rng(3).integers(0, 900, (4, 10, 14)).astype(np.int16)
    tags = {"PhotometricInterpretation": "MONOCHROME1", "FrameOfReferenceUID": FRAME_OF_REFERENCE}
    paths = save_series(folder, stack, **tags, **WHO)
    (series,) = group_series(paths)
    return _dotted(open_series(series, ReadingSettings()), paths, 1, 8, 2)


def radiograph(folder: Path) -> Dotted:
    """An inverted radiograph, which has no place in space."""
    pixels = np.random.default_rng(4).integers(0, 4000, (40, 30)).astype(np.uint16)
    path = save_dicom(
        folder / "chest.dcm",
        pixels,
        Modality="CR",
        SOPClassUID="1.2.840.10008.5.1.4.1.1.1",
        PhotometricInterpretation="MONOCHROME1",
        ImagerPixelSpacing=[0.2, 0.2],
        PatientOrientation=["L", "F"],
        **WHO,
    )
    return _dotted(open_file(path, ReadingSettings()), [path], 0, 33, 4)


def clip(folder: Path) -> Dotted:
    """Ultrasound in colour: frames in time, without a place."""
    pixels = np.random.default_rng(5).integers(0, 255, (4, 20, 24, 3)).astype(np.uint8)
    path = save_dicom(
        folder / "clip.dcm",
        pixels,
        Modality="US",
        SOPClassUID="1.2.840.10008.5.1.4.1.1.3.1",
        **WHO,
    )
    return _dotted(open_file(path, ReadingSettings()), [path], 2, 5, 19)


PLACED = {
    "ct": _single("CT_small.dcm"),
    "mr": _single("MR_small.dcm"),
    "oblique": oblique,
    "coronal cut": coronal_cut,
    "multi-frame": enhanced,
    "three planes": survey,
    "monochrome1": inverted,
}
UNPLACED = {"radiograph": radiograph, "clip": clip}
