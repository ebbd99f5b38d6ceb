"""Of whom a DICOM result is, and what it says of itself: patient, study, maker, names and codes."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Any, Literal

from recap import __version__
from recap.errors import require
from recap.io.dicom.header import MAKER, MODEL, numbers, text

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
        # A name is iterable, so `text` would take it for several values.
        name = str(header.get(keyword) or "").replace("\\", " ")
        setattr(clean, keyword, "".join(filter(str.isprintable, name))[:64].strip())
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
    """Copy whether pixels were ever compressed with losses; each time has a ratio and a method."""
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


def _matching(pattern: re.Pattern[str], value: str) -> str:
    return value if pattern.fullmatch(value) else ""


# ASCII, so that it can be written in whatever characters the source uses.
NOTICE = "RESEARCH ONLY - NOT FOR DIAGNOSIS"
SCHEME = "99RECAP"

Kind = Literal["map", "segments", "report", "capture"]
_SERIES: Mapping[Kind, tuple[int, str]] = {
    "map": (1, "recap anomaly map"),
    "segments": (2, "recap abnormal regions"),
    "report": (3, "recap scores"),
    "capture": (4, "recap overlay"),
}
# Where a source's own number cannot be built upon.
_FALLBACK_SERIES = 90

NewUid = Callable[[], str]


def random_uids() -> str:
    """A UID that is new in the world."""
    return str(require("pydicom.uid", "dicom").generate_uid(prefix=None))


def repeatable_uids(*seed: str) -> NewUid:
    """UIDs that follow from the seed: the same work, done again, gives the same objects."""
    numbers = count()

    def new() -> str:
        digest = sha256("\0".join([*seed, str(next(numbers))]).encode()).digest()
        return f"2.25.{int.from_bytes(digest[:16], 'big')}"

    return new


@dataclass(frozen=True)
class Maker:
    """The detector that the results come from, and the source of new UIDs."""

    new_uid: NewUid = random_uids
    detector: str = ""
    """What tells the bundle from others, such as its fingerprint."""

    def equipment(self) -> dict[str, Any]:
        """General Equipment in highdicom's words."""
        return {
            "manufacturer": MAKER,
            "manufacturer_model_name": MODEL,
            "software_versions": __version__,
            "device_serial_number": self.detector[:64] or "none",
        }

    def series(self, kind: Kind, source_number: int, uid: str | None = None) -> dict[str, Any]:
        """A new series beside the source's, with a number that leads back to it."""
        place, description = _SERIES[kind]
        base = source_number if 0 < source_number < 10**6 else _FALLBACK_SERIES
        return {
            "series_instance_uid": uid or self.new_uid(),
            "series_number": 100 * base + place,
            "series_description": f"{description} ({NOTICE})",
            "sop_instance_uid": self.new_uid(),
            "instance_number": 1,
        }


def code(value: str, meaning: str) -> Any:
    """A code of recap's own, for what no standard has a word for."""
    return require("highdicom.sr", "dicom").CodedConcept(value, SCHEME, meaning)


def standard_code(value: str, scheme: str, meaning: str) -> Any:
    """A code of a standard vocabulary."""
    return require("highdicom.sr", "dicom").CodedConcept(value, scheme, meaning)


def own_scheme() -> Any:
    """Name what the letters of recap's own codes stand for."""
    schemes = require("highdicom.coding_schemes", "dicom")
    return schemes.CodingSchemeIdentificationItem(
        SCHEME, name="recap anomaly detection", responsible_organization=MAKER
    )
