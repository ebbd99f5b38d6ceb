"""Destinations of results: another application entity by C-STORE, or a DICOMweb archive.

pynetdicom waits without end for the rest of what has begun: half a message of a sender that lost
its power would keep its association open, and its study unscored; an archive that stops reading
would keep all other results from being sent. It also takes a message of any length into memory
before anybody is asked. A `Connection` ends when its peer stands still, or brings more than it may.
"""

import logging
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from recap.errors import InputError, RecapError, SettingsError, require
from recap.io.dicom.file import read_whole
from recap.service.pacs.dicomweb import OUT_OF_RESOURCES, STORED, ArchiveError, DicomWeb
from recap.service.pacs.spool import Answer

_ADDRESS = re.compile(r"(?P<title>[^@\\]{1,16})@(?P<host>\[[^\]]+\]|[^:@\[\]]+):(?P<port>\d{1,5})")
_WARNINGS, _HAS_IT_ALREADY = range(0xB000, 0xC000), 0x0111
_NEVER = (0x0122, 0xC122, *range(0xA900, 0xAA00))
"""Answers about kinds and transfer syntaxes that an archive does not know, and about objects that
contradict their kind. All else may pass: a right that is missing, a data base that hiccups; many
archives also answer "cannot understand" (0xC000) to whatever goes wrong in them."""
_OF_THE_OBJECT = (400, 413, 415, 422)
"""HTTP answers that speak of what was sent rather than of the archive."""
_TIMEOUT_S = 30
_log = logging.getLogger(__name__)


class SendError(RecapError, code="archive"):
    """The archive could not be reached or has no room; the same result may be sent later."""


class StuckError(SendError):
    """The archive is there, but does not take this very object as it is set up now."""


class Destination(Protocol):
    """Takes results."""

    def send(self, path: Path) -> Answer:
        """Send one file; `SendError` if that may succeed later, `StuckError` if that is its own
        matter."""

    def close(self) -> None:
        """Let go of the connection; the next file opens another."""


@dataclass(frozen=True)
class Address:
    """An application entity and where it listens."""

    title: str
    host: str
    port: int


def parse_address(text: str) -> Address:
    """Parse an address written as AE@HOST:PORT."""
    found = _ADDRESS.fullmatch(text)
    if not found or not 0 < int(found["port"]) < 2**16:
        raise SettingsError(
            f"'{text}' is no address: write AE@HOST:PORT, such as PACS@10.0.0.5:104."
        )
    return Address(found["title"].strip(), found["host"].strip("[]"), int(found["port"]))


def _answer(code: int | None, archive: str) -> Answer:
    """Decide what a status of C-STORE, or a reason of STOW-RS, means for an object."""
    if code in (STORED, _HAS_IT_ALREADY) or code in _WARNINGS:
        return "stored"
    if code in _NEVER:
        return "refused"
    said = "gives no reason" if code is None else f"status {code:#06x}"
    raise StuckError(f"{archive} does not take it ({said}).")


class DicomPeer:
    """An application entity that takes results by C-STORE over one association."""

    def __init__(self, address: Address, own_title: str = "RECAP") -> None:
        self.address = address
        self._ae = _requestor(own_title)
        self._association: Any = None

    def send(self, path: Path) -> Answer:
        """Send one file; an answer that it will never be taken is an answer, too."""
        try:
            dataset = read_whole(path)
        except InputError as error:  # what cannot be read must not hold up the others
            raise StuckError(str(error)) from error
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
        return _answer(code, self.address.title)

    def close(self) -> None:
        """Release the association."""
        if self._association is not None and self._association.is_established:
            self._association.release()
        self._association = None

    def _connected(self) -> Any:
        if self._association is None or not self._association.is_established:
            address = self.address
            opened = require("pynetdicom", "pacs").evt.EVT_CONN_OPEN
            self._association = self._ae.associate(
                address.host,
                address.port,
                ae_title=address.title,
                evt_handlers=[(opened, limit, [_TIMEOUT_S])],
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
    """Make an application entity that offers all that recap writes."""
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
            return _answer(self._web.store_file(path), "the archive")
        except InputError as error:
            of_the_archive = isinstance(error, ArchiveError) and error.status not in _OF_THE_OBJECT
            raise (SendError if of_the_archive else StuckError)(str(error)) from error

    def close(self) -> None:
        """Nothing is kept open."""


class Connection(socket.socket):
    """The socket of an association; beyond its limits it fails like one that was cut."""

    def __init__(self, opened: socket.socket, silence_s: float, most_bytes: int | None) -> None:
        super().__init__(opened.family, opened.type, opened.proto, opened.detach())
        self.settimeout(silence_s)
        self._most = most_bytes
        self._received = 0

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive the next bytes of a message."""
        data = super().recv(size, flags)
        self._received += len(data)
        if self._most is not None and self._received > self._most:
            _log.error("a peer was cut off: its image has more bytes than are taken")
            raise OSError("too many bytes")
        return data

    def send(self, data: Any, flags: int = 0) -> int:
        """Answer, by which what was received until now is dealt with."""
        self._received = 0
        return super().send(data, flags)


def limit(event: Any, silence_s: float, most_bytes: int | None = None) -> None:
    """Set limits to an association that is about to begin (a handler of EVT_CONN_OPEN)."""
    held = event.assoc.dul.socket
    held.socket = Connection(held.socket, silence_s, most_bytes)
