"""Patient and study of a source file, as values that may be written again."""

import re
from typing import Any

from recap.errors import require
from recap.io.dicom.header import numbers, text

_DATES, _TIMES = ("PatientBirthDate", "StudyDate"), ("StudyTime",)
_NAMES = ("PatientName", "ReferringPhysicianName")
# Required by the standard, if empty.
_NUMBERS = {"AccessionNumber": 16, "StudyID": 16, "PatientID": 64}
_ISSUER, _ISSUER_LETTERS = "IssuerOfPatientID", 64
# Words, which are copied where they are there.
_OPTIONAL = {
    "StudyDescription": 64,
    "PatientIdentityRemoved": 16,
    "DeidentificationMethod": 64,
    "LongitudinalTemporalInformationModified": 16,
}
_CODE_LETTERS = 16
_SEXES = ("M", "F", "O")
_DATE = re.compile(r"(19|20|18)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])")
_TIME = re.compile(r"([01]\d|2[0-3])([0-5]\d([0-5]\d(\.\d{1,6})?)?)?")


def patient_and_study(header: Any) -> Any:
    """A data set with the patient's and the study's values; what is not valid is left empty."""
    clean = require("pydicom.dataset", "dicom").Dataset()
    for keyword in _NAMES:
        setattr(clean, keyword, _name(header, keyword))
    for keyword, most in _NUMBERS.items():
        setattr(clean, keyword, _whole(header, keyword, most))
    if issuer := _whole(header, _ISSUER, _ISSUER_LETTERS):
        setattr(clean, _ISSUER, issuer)
    for keyword, most in _OPTIONAL.items():
        if value := text(header, keyword)[:most]:
            setattr(clean, keyword, value)
    _copy_compression(clean, header)
    if clean.get("PatientIdentityRemoved") == "YES" and "DeidentificationMethod" not in clean:
        clean.DeidentificationMethod = "not stated by the source"
    for keyword in _DATES:
        setattr(clean, keyword, _matching(_DATE, text(header, keyword)))
    for keyword in _TIMES:
        setattr(clean, keyword, _matching(_TIME, text(header, keyword)))
    sex = text(header, "PatientSex")
    clean.PatientSex = sex if sex in _SEXES else ""
    if not all(str(element.value).isascii() for element in clean):
        clean.SpecificCharacterSet = "ISO_IR 192"
    return clean


def _whole(header: Any, keyword: str, most: int) -> str:
    """A value that is not too long; the start of a number is that of another patient or study."""
    value = text(header, keyword)
    return value if len(value) <= most else ""


def _copy_compression(clean: Any, header: Any) -> None:
    """Whether the pixels were ever compressed with losses; one ratio and method for each time."""
    lossy = text(header, "LossyImageCompression")
    if lossy in ("00", "01"):
        clean.LossyImageCompression = lossy
    if lossy != "01":
        return
    if ratios := numbers(header, "LossyImageCompressionRatio"):
        clean.LossyImageCompressionRatio = [f"{ratio:.8g}" for ratio in ratios]
    if methods := text(header, "LossyImageCompressionMethod"):
        clean.LossyImageCompressionMethod = [
            method.strip()[:_CODE_LETTERS] for method in methods.split("\\")
        ]


def _name(header: Any, keyword: str) -> str:
    # A name is iterable, so `text` would take it for several values.
    value = str(header.get(keyword) or "").replace("\\", " ")
    return "".join(filter(str.isprintable, value))[:64].strip()


def _matching(pattern: re.Pattern[str], value: str) -> str:
    return value if pattern.fullmatch(value) else ""
