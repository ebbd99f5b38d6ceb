"""The DICOM frames that a case was read from: whom they show, where they lie, how to name them.

highdicom believes its sources. What it is given are stand-ins: single-frame headers, made of the
values that could be read, one for each frame. `name_sources` then puts the frames' true names
into what it wrote. That serves single-frame series, multi-frame files and files that lack half of
what the standard asks for in the same way.
"""

import copy
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recap.errors import InputError, require
from recap.io.case import Case, DicomFrame
from recap.io.dicom.file import careful, open_file
from recap.io.dicom.geometry import SAME_PLACE_MM, geometry_of, plane_of, same_frame
from recap.io.dicom.header import frame_tags, integer, number, numbers, text
from recap.report.dicom.identity import patient_and_study

_CT = "1.2.840.10008.5.1.4.1.1.2"
_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
_STAND_IN = "2.25."
_ORIENTATION = re.compile("[APRLHF]{1,3}")
_NAMES = ("StudyInstanceUID", "SeriesInstanceUID", "SOPClassUID", "SOPInstanceUID")


@dataclass(frozen=True, eq=False)
class SourceFrame:
    """One frame of the source, and what its file says of it."""

    header: Any
    """Patient, study and the true names of its file, cleaned."""
    frame_number: int | None
    """Counted from 1; None in a file that holds one image only."""
    position: tuple[float, ...]
    """Of its first pixel, in millimetres towards left, posterior and superior; empty if unknown."""
    orientation: tuple[float, ...]
    spacing_mm: tuple[float, float] | None
    plane: Any
    thickness_mm: float

    @property
    def instance(self) -> str:
        """The SOP instance UID of its file."""
        return str(self.header.SOPInstanceUID)


@dataclass(frozen=True, eq=False)
class Source:
    """All frames of a case, in stored order."""

    frames: Sequence[SourceFrame]
    size_hw: tuple[int, int]
    series_number: int

    @property
    def files(self) -> list[Any]:
        """The header of each file, once."""
        return list({frame.instance: frame.header for frame in self.frames}.values())

    @property
    def placed(self) -> bool:
        """True if every frame has a place in the patient's frame of reference."""
        return all(frame.plane is not None for frame in self.frames)

    def groups(self) -> list[list[int]]:
        """Frames that can be told apart by place go together, others alone."""
        if self.placed and len(self.frames) > 1:
            planes = [frame.plane for frame in self.frames]
            places = np.sort([plane.place_mm for plane in planes])
            if same_frame(planes) and np.diff(places).min() > SAME_PLACE_MM:
                return [list(range(len(self.frames)))]
        return [[index] for index in range(len(self.frames))]

    def stand_ins(self, group: Sequence[int]) -> list[Any]:
        """A header for highdicom for each frame of a group, named by the frame's index."""
        return [self._stand_in(index, self.frames[group[0]]) for index in group]

    def _stand_in(self, index: int, first: SourceFrame) -> Any:
        frame = self.frames[index]
        stand_in = copy.deepcopy(frame.header)
        stand_in.SOPInstanceUID = f"{_STAND_IN}{index + 1}"
        stand_in.SOPClassUID = _CT if frame.plane is not None else _CAPTURE
        stand_in.Rows, stand_in.Columns = self.size_hw
        if frame.plane is None:
            if "FrameOfReferenceUID" in stand_in:
                del stand_in.FrameOfReferenceUID
            return stand_in
        stand_in.ImagePositionPatient = [f"{value:.10g}" for value in frame.position]
        # Of the group's first frame: some scanners write it with other digits for each slice,
        # though it is the same.
        stand_in.ImageOrientationPatient = [f"{value:.10g}" for value in first.orientation]
        stand_in.PixelSpacing = [f"{value:.10g}" for value in first.spacing_mm or (1, 1)]
        stand_in.SliceThickness = f"{first.thickness_mm:.10g}"
        return stand_in


def read_source(case: Case) -> Source:
    """Read the headers of a case's DICOM files again."""
    if not case.dicom_frames:
        raise InputError(
            f"{case.source}: was not read from DICOM files, so there is no patient and no study "
            "that DICOM results could belong to. Leave --dicom away."
        )
    opened: dict[Path, tuple[Any, Any, int]] = {}
    frames = []
    for frame in case.dicom_frames:
        if frame.path not in opened:
            file = open_file(frame.path)
            with careful(frame.path):
                opened[frame.path] = (file, _clean_header(file.header, frame), file.layout.frames)
        file, header, count = opened[frame.path]
        with careful(frame.path):
            frames.append(_frame(file.header, header, frame.number, count))
    first = opened[case.dicom_frames[0].path][0]
    size_hw = (first.layout.rows, first.layout.columns)
    return Source(frames, size_hw, integer(first.header, "SeriesNumber"))


def _clean_header(header: Any, frame: DicomFrame) -> Any:
    clean = patient_and_study(header)
    for keyword in _NAMES:
        value = text(header, keyword)
        if not require("pydicom.uid", "dicom").UID(value).is_valid:
            raise InputError(
                f"{frame.path}: its {keyword} is {value!r}, so results cannot refer to it. Export "
                "it again, with its UIDs."
            )
        setattr(clean, keyword, value)
    clean.Modality = text(header, "Modality") or "OT"
    side = text(header, "Laterality") or text(header, "ImageLaterality")
    clean.Laterality = side if side in ("L", "R") else ""
    letters = text(header, "PatientOrientation").split("\\")
    known = len(letters) == 2 and all(_ORIENTATION.fullmatch(letter) for letter in letters)
    clean.PatientOrientation = letters if known else []
    burned_in = text(header, "BurnedInAnnotation")
    if burned_in in ("YES", "NO"):
        clean.BurnedInAnnotation = burned_in
    reference = text(header, "FrameOfReferenceUID")
    if require("pydicom.uid", "dicom").UID(reference).is_valid:
        clean.FrameOfReferenceUID = reference
        clean.PositionReferenceIndicator = text(header, "PositionReferenceIndicator")
    return clean


def _frame(header: Any, clean: Any, frame: int, count: int) -> SourceFrame:
    tags = frame_tags(header, frame)
    # Without a frame of reference, a position says where in nothing in particular.
    plane = plane_of(tags) if "FrameOfReferenceUID" in clean else None
    thickness = abs(number(tags, "SliceThickness") or 0.0)
    return SourceFrame(
        header=clean,
        frame_number=frame + 1 if count > 1 else None,
        position=numbers(tags, "ImagePositionPatient") if plane else (),
        orientation=numbers(tags, "ImageOrientationPatient") if plane else (),
        spacing_mm=geometry_of(tags).spacing_mm,
        plane=plane,
        thickness_mm=thickness or (plane.thickness_mm if plane else 0.0),
    )


def reference(frame: SourceFrame, with_number: bool = True) -> Any:
    """An item that names a frame's file, and the frame where the file has several."""
    item = require("pydicom.dataset", "dicom").Dataset()
    item.ReferencedSOPClassUID = frame.header.SOPClassUID
    item.ReferencedSOPInstanceUID = frame.header.SOPInstanceUID
    if with_number and frame.frame_number is not None:
        item.ReferencedFrameNumber = frame.frame_number
    return item


def name_sources(written: Any, source: Source) -> None:
    """Replace the stand-ins' names in what highdicom wrote by those of the source's frames."""

    def files(items: Iterable[Any]) -> list[Any]:
        frames = [_frame_named(item, source) for item in items]
        return list({each.instance: reference(each, with_number=False) for each in frames}.values())

    if not source.placed:
        written.PatientOrientation = source.frames[0].header.PatientOrientation
    written.SourceImageSequence = files(written.SourceImageSequence)
    for series in written.ReferencedSeriesSequence:
        series.ReferencedInstanceSequence = files(series.ReferencedInstanceSequence)
    # highdicom shares items between the segments of a frame, and a true name may look like a
    # stand-in's: each object has its name looked up once.
    items = {
        id(item): item
        for group in written.PerFrameFunctionalGroupsSequence
        for derivation in group.get("DerivationImageSequence") or ()
        for item in derivation.SourceImageSequence
    }
    for item in items.values():
        item.update(reference(_frame_named(item, source)))


def _frame_named(item: Any, source: Source) -> SourceFrame:
    """The frame that a stand-in's name is for; only ever asked of what is not renamed yet."""
    return source.frames[int(str(item.ReferencedSOPInstanceUID).removeprefix(_STAND_IN)) - 1]
