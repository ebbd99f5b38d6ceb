"""The pictures among the DICOM results: Parametric Map, Segmentation and Secondary Capture.

The map is float32 and lies on the source's own frames, as does the segmentation: binary, a segment
for each finding, numbered by their peaks. Captures are for viewers that show pictures and nothing
else: the overlay has the source's pixels at the source's places, the notice a strip below it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from recap import __version__
from recap.errors import require
from recap.io.dicom.header import MAKER, MODEL
from recap.report.dicom.identity import NOTICE, Maker, code, standard_code
from recap.report.dicom.report import Finding, Labels
from recap.report.dicom.source import Source, SourceFrame, name_sources, reference
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
    """Repeat of the source's pixels what is true of a picture that shows them.

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
    """Give what one suffices to say, else what all of them say, else nothing."""
    values = {str(header.get(keyword, "")) for header in headers}
    if strongest in values:
        return strongest
    return values.pop() if len(values) == 1 else ""


def _copy(written: Any, header: Any, keywords: Sequence[str]) -> None:
    for keyword in keywords:
        if keyword in header:
            setattr(written, keyword, header.get(keyword))


def _patient_orientation(image: Image) -> list[str]:
    """Name where rows and columns run to, if that is known."""
    orientation = image.geometry.orientation
    if len(orientation) != 3:
        return []
    down, along = orientation[1], orientation[2]
    return [_DICOM_LETTERS.get(letter, letter) for letter in (along, down)]


# The pixels of an object have a length of 32 bits.
MAX_BYTES = 2**32 - 2


def parametric_map(
    source: Source,
    maps: FloatArray,
    indices: Sequence[int],
    scale: tuple[float, float],
    maker: Maker,
    series: dict[str, Any],
) -> Any:
    """A Parametric Map of some frames of the source; `maps` are those of all frames."""
    highdicom = require("highdicom", "dicom")
    values = maps[list(indices)].astype(np.float32, copy=False)
    # The detector's fixed colour scale; a LINEAR window may not be narrower than 1.
    low, high = scale
    window = highdicom.VOILUTTransformation(
        window_center=float(f"{(low + high) / 2:.10g}"),
        window_width=float(f"{high - low:.10g}"),
        voi_lut_function="LINEAR_EXACT",
    )
    written = highdicom.pm.ParametricMap(
        source_images=source.stand_ins(indices),
        pixel_array=values,
        contains_recognizable_visual_features=False,
        real_world_value_mappings=[_meaning(values, scale)],
        voi_lut_transformations=[window],
        content_label="ANOMALY_MAP",
        content_description=f"Anomaly map. {NOTICE}",
        **maker.equipment(),
        **series,
    )
    name_sources(written, source)
    written.Laterality = source.frames[0].header.Laterality
    return written


def _meaning(values: FloatArray, scale: tuple[float, float]) -> Any:
    """The stored values are the detector's own, without a unit."""
    highdicom = require("highdicom", "dicom")
    return highdicom.pm.RealWorldValueMapping(
        lut_label="ANOMALY",
        lut_explanation="Anomaly: higher is more abnormal",
        unit=require("pydicom.sr.codedict", "dicom").codes.UCUM.NoUnits,
        value_range=(
            float(min(values.min(), scale[0])),
            float(max(values.max(), scale[1])),
        ),
        slope=1.0,
        intercept=0.0,
        quantity_definition=code("anomaly", "Anomaly of a pixel"),
    )


def segmentation(
    source: Source,
    labels: Labels,
    indices: Sequence[int],
    findings: Sequence[Finding],
    tracking: Mapping[int, str],
    maker: Maker,
    series: dict[str, Any],
) -> Any:
    """A Segmentation of the findings that lie on some frames of the source."""
    highdicom = require("highdicom", "dicom")
    own = labels[list(indices)]
    # Segments are counted from 1 without gaps, so findings elsewhere leave no number here.
    present = np.bincount(own.ravel(), minlength=len(findings) + 1) > 0
    here = [finding for finding in findings if present[finding.number]]
    renumber = np.zeros(len(present), own.dtype)
    renumber[[finding.number for finding in here]] = range(1, len(here) + 1)
    written = highdicom.seg.Segmentation(
        source_images=source.stand_ins(indices),
        pixel_array=renumber[own],
        segmentation_type="BINARY",
        segment_descriptions=[
            _description(number, finding, tracking[finding.number])
            for number, finding in enumerate(here, start=1)
        ],
        content_label="ABNORMAL_REGIONS",
        content_description=f"Abnormal regions. {NOTICE}",
        **maker.equipment(),
        **series,
    )
    name_sources(written, source)
    return written


def _description(number: int, finding: Finding, tracking_uid: str) -> Any:
    highdicom = require("highdicom", "dicom")
    return highdicom.seg.SegmentDescription(
        segment_number=number,
        segment_label=finding.label,
        segmented_property_category=standard_code(
            "49755003", "SCT", "Morphologically Abnormal Structure"
        ),
        segmented_property_type=standard_code("52988006", "SCT", "Lesion"),
        algorithm_type="AUTOMATIC",
        algorithm_identification=highdicom.AlgorithmIdentificationSequence(
            name=MODEL,
            family=standard_code("123109", "DCM", "Artificial Intelligence"),
            version=__version__,
            source=MAKER,
        ),
        tracking_uid=tracking_uid,
        tracking_id=finding.label,
    )
