"""What every DICOM result says of itself: who made it, how it is named, in which codes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Any, Literal

from recap import __version__
from recap.errors import require
from recap.io.dicom.header import MAKER, MODEL

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
    """What the letters of recap's own codes stand for."""
    schemes = require("highdicom.coding_schemes", "dicom")
    return schemes.CodingSchemeIdentificationItem(
        SCHEME, name="recap anomaly detection", responsible_organization=MAKER
    )
