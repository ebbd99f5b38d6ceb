"""Where results go: another application entity by C-STORE, or a DICOMweb archive."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from recap.errors import InputError, RecapError, SettingsError
from recap.extras import require
from recap.pacs.dicomweb import OUT_OF_RESOURCES, DicomWeb

Answer = Literal["stored", "refused"]
_ADDRESS = re.compile(r"(?P<title>[^@\\]{1,16})@(?P<host>\[[^\]]+\]|[^:@\[\]]+):(?P<port>\d{1,5})")
_SUCCESS, _WARNINGS = 0x0000, range(0xB000, 0xC000)
_OF_THE_OBJECT = (400, 413, 415, 422)
"""What HTTP answers say of what was sent rather than of the archive."""
_TIMEOUT_S = 30


class SendError(RecapError):
    """The archive could not be reached or has no room; the same result may be sent later."""


class StuckError(SendError):
    """The archive is there, but does not take this very object as it is set up now."""


class Destination(Protocol):
    """Takes results."""

    def send(self, path: Path) -> Answer:
        """Send one file; `SendError` if that may succeed later."""

    def close(self) -> None:
        """Let go of the connection; the next file opens another."""


@dataclass(frozen=True)
class Address:
    """An application entity and where it listens."""

    title: str
    host: str
    port: int


def parse_address(text: str) -> Address:
    """An address written as AE@HOST:PORT."""
    found = _ADDRESS.fullmatch(text)
    if not found or not 0 < int(found["port"]) < 2**16:
        raise SettingsError(
            f"'{text}' is no address: write AE@HOST:PORT, such as PACS@10.0.0.5:104."
        )
    return Address(found["title"].strip(), found["host"].strip("[]"), int(found["port"]))


class DicomPeer:
    """An application entity that takes results by C-STORE over one association."""

    def __init__(self, address: Address, own_title: str = "RECAP") -> None:
        self.address = address
        self._ae = _requestor(own_title)
        self._association: Any = None

    def send(self, path: Path) -> Answer:
        """Send one file; an answer that it will never be taken is an answer, too."""
        dataset = require("pydicom", "pacs").dcmread(path)
        association = self._connected()
        try:
            status = association.send_c_store(dataset)
        except ValueError as error:
            # The peer does not know this kind of object; it will not tomorrow either.
            if association.is_established:
                return "refused"
            raise SendError(self._lost()) from error
        except RuntimeError as error:  # it was closed since we looked
            self.close()
            raise SendError(self._lost()) from error
        code = status.get("Status") if status else None
        if code is None:
            self.close()
            raise SendError(self._lost())
        if code in OUT_OF_RESOURCES:
            raise SendError(f"{self.address.title} has no room (status {code:#06x}).")
        return "stored" if code == _SUCCESS or code in _WARNINGS else "refused"

    def close(self) -> None:
        """Release the association."""
        if self._association is not None and self._association.is_established:
            self._association.release()
        self._association = None

    def _connected(self) -> Any:
        if self._association is None or not self._association.is_established:
            address = self.address
            self._association = self._ae.associate(
                address.host, address.port, ae_title=address.title
            )
            if not self._association.is_established:
                self._association = None
                raise SendError(
                    f"{address.title} at {address.host}:{address.port} does not answer or does "
                    "not accept us."
                )
        return self._association

    def _lost(self) -> str:
        return f"the connection to {self.address.title} was lost."


def _requestor(own_title: str) -> Any:
    """An application entity that offers all that recap writes."""
    ae = require("pynetdicom", "pacs").AE(ae_title=own_title)
    kinds = require("pynetdicom.sop_class", "pacs")
    for kind in (
        kinds.ParametricMapStorage,
        kinds.SegmentationStorage,
        kinds.ComprehensiveSRStorage,
        kinds.SecondaryCaptureImageStorage,
    ):
        ae.add_requested_context(kind)
    ae.acse_timeout = ae.dimse_timeout = ae.network_timeout = _TIMEOUT_S
    return ae


class WebArchive:
    """A DICOMweb archive that takes results by STOW-RS."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._web = DicomWeb(url, token)

    def send(self, path: Path) -> Answer:
        """Send one file."""
        try:
            return "stored" if self._web.store([path]) == 1 else "refused"
        except InputError as error:
            kind = StuckError if getattr(error, "status", None) in _OF_THE_OBJECT else SendError
            raise kind(str(error)) from error

    def close(self) -> None:
        """Nothing is kept open."""
