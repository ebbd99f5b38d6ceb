"""Overlays as Secondary Captures, for viewers that show pictures and nothing else.

The overlay has the source's pixels at the source's places; the notice stands on a strip below it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from recap.errors import require
from recap.report.dicom_identity import NOTICE, Maker
from recap.report.dicom_source import Source, SourceFrame, reference
from recap.report.overlay import overlay
from recap.types import FloatArray, Image

_MARGIN_PX, _SMALLEST_FONT, _LARGEST_FONT = 2, 8, 16
_IF_THERE = (
    "IssuerOfPatientID",
    "PatientIdentityRemoved",
    "DeidentificationMethod",
    "LongitudinalTemporalInformationModified",
    "StudyDescription",
)
_COMPRESSION = ("LossyImageCompressionRatio", "LossyImageCompressionMethod")
# recap says S and I where DICOM says H(ead) and F(eet).
_DICOM_LETTERS = {"S": "H", "I": "F"}


def capture(
    image: Image,
    map: FloatArray,
    scale: tuple[float, float],
    lines: Sequence[str],
    frames: Sequence[SourceFrame],
    source: Source,
    maker: Maker,
    series: dict[str, Any],
) -> Any:
    """A Secondary Capture of one image of the case with its map; `frames` are what it shows."""
    sc = require("highdicom.sc", "dicom")
    header = source.frames[0].header
    written = sc.SCImage(
        pixel_array=with_strip(np.asarray(overlay(image, map, scale)), [NOTICE, *lines]),
        photometric_interpretation="RGB",
        bits_allocated=8,
        coordinate_system="PATIENT",
        patient_orientation=("L", "P"),
        study_instance_uid=header.StudyInstanceUID,
        specific_character_set=header.get("SpecificCharacterSet"),
        study_date=header.StudyDate or None,
        study_time=header.StudyTime or None,
        **maker.equipment(),
        **series,
    )
    _name_patient(written, header)
    written.Laterality = header.Laterality
    written.PatientOrientation = _patient_orientation(image) or header.PatientOrientation
    _tell_of_pixels(written, frames)
    written.DerivationDescription = f"Anomaly map over the image. {NOTICE}"
    written.SourceImageSequence = [reference(frame) for frame in frames]
    # The spacing at a detector is not that in the patient, which is what this tag says.
    if image.geometry.spacing_mm and image.geometry.affine_ras is not None:
        written.PixelSpacing = [f"{value:.10g}" for value in image.geometry.spacing_mm]
    return written


def with_strip(pixels: NDArray[np.uint8], lines: Sequence[str]) -> NDArray[np.uint8]:
    """The picture with lines of text below it; none of its own pixels moves."""
    width = pixels.shape[1]
    font = _font(width)
    wrapped = [part for line in lines for part in _wrap(line, font, width - 2 * _MARGIN_PX)]
    step = round(font.size * 1.25)
    strip = Pillow.new("RGB", (width, step * len(wrapped) + 2 * _MARGIN_PX))
    draw = ImageDraw.Draw(strip)
    for number, line in enumerate(wrapped):
        draw.text((_MARGIN_PX, _MARGIN_PX + number * step), line, "white", font)
    return np.concatenate([pixels, np.asarray(strip)])


def _font(width: int) -> Any:
    """The largest font in which the notice takes one line; on tiny pictures the smallest."""
    for size in range(_LARGEST_FONT, _SMALLEST_FONT, -1):
        font = ImageFont.load_default(size)
        if font.getlength(NOTICE) <= width - 2 * _MARGIN_PX:
            return font
    return ImageFont.load_default(_SMALLEST_FONT)


def _wrap(line: str, font: Any, width: float) -> list[str]:
    wrapped = [""]
    for word in line.split():
        longer = f"{wrapped[-1]} {word}".strip()
        if font.getlength(longer) <= width or not wrapped[-1]:
            wrapped[-1] = longer
        else:
            wrapped.append(word)
    return wrapped


def _name_patient(written: Any, header: Any) -> None:
    # Set here rather than given: highdicom refuses names that it finds unusual.
    for keyword in ("PatientName", "PatientID", "PatientBirthDate", "PatientSex"):
        setattr(written, keyword, header.get(keyword, ""))
    for keyword in ("AccessionNumber", "StudyID", "ReferringPhysicianName"):
        setattr(written, keyword, header.get(keyword, ""))
    _copy(written, header, _IF_THERE)


def _tell_of_pixels(written: Any, frames: Sequence[SourceFrame]) -> None:
    """What is true of the source's pixels is true of a picture that shows them.

    Our own strip names neither patient nor date, so it is no annotation in this sense. A source
    that does not say whether it has one may have one.
    """
    headers = [frame.header for frame in frames]
    if burned_in := _of_all(headers, "BurnedInAnnotation", "YES"):
        written.BurnedInAnnotation = burned_in
    if lossy := _of_all(headers, "LossyImageCompression", "01"):
        written.LossyImageCompression = lossy
        same = (header for header in headers if header.get("LossyImageCompression") == lossy)
        _copy(written, next(same), _COMPRESSION)


def _of_all(headers: Sequence[Any], keyword: str, strongest: str) -> str:
    """What one suffices to say, else what all of them say, else nothing."""
    values = {str(header.get(keyword, "")) for header in headers}
    if strongest in values:
        return strongest
    return values.pop() if len(values) == 1 else ""


def _copy(written: Any, header: Any, keywords: Sequence[str]) -> None:
    for keyword in keywords:
        if keyword in header:
            setattr(written, keyword, header.get(keyword))


def _patient_orientation(image: Image) -> list[str]:
    """Where rows and columns run to, where that is known."""
    orientation = image.geometry.orientation
    if len(orientation) != 3:
        return []
    down, along = orientation[1], orientation[2]
    return [_DICOM_LETTERS.get(letter, letter) for letter in (along, down)]
