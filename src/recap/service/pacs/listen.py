"""The listener: takes studies by C-STORE, has each scored when it is complete, sends the results.

An image is confirmed only when it is on disk, and a study is done only when the archive has
answered for every result. What a kill interrupts is taken up again at the next start.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recap._process import Retries
from recap.errors import InputError, RecapError, SettingsError, is_full, log_failure, require
from recap.service.pacs.send import Destination, SendError, StuckError, limit
from recap.service.pacs.spool import Round, Spool, Unscored

ScoreStudy = Callable[[Path, Path], Sequence[Unscored]]
"""Reads the images of one folder, writes results as DICOM files into another, says what failed."""

_SUCCESS, _OUT_OF_RESOURCES, _NOT_UNDERSTOOD = 0x0000, 0xA700, 0xC000
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_MAX_ATTEMPTS = 10
_TICK_S, _LONGEST_WAIT_S = 0.2, 60.0
_SILENCE_S = 60.0
"""The time that a peer may pause, within a message or between two."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListenSettings:
    """A listener's name and place, and the limits of what it takes."""

    ae_title: str = "RECAP"
    host: str = "127.0.0.1"
    port: int = 11112
    quiet_seconds: float = 5.0
    calling: tuple[str, ...] = ()
    """Titles that may send; none means all."""
    max_instance_bytes: int = 2**29
    max_instances: int = 20_000
    """Of one study."""
    max_spool_bytes: int = 50 * 2**30
    max_associations: int = 10

    def check(self) -> None:
        """Refuse what cannot be, and what would let anybody on the network send."""
        if not 1 <= len(self.ae_title.strip()) <= 16 or "\\" in self.ae_title:
            raise SettingsError(
                f"'{self.ae_title}' is no application entity title: 1 to 16 letters, such as RECAP."
            )
        if not 0 <= self.port < 2**16:
            raise SettingsError(f"Port {self.port} cannot be: choose one from 1 to 65535.")
        if self.host not in LOOPBACK and not self.calling:
            raise SettingsError(
                f"Listening on {self.host} would take images from anybody. Name who may send with "
                "--calling AE, or stay on 127.0.0.1."
            )


@dataclass
class _Arrivals:
    """When each study was last heard of, and the associations that brought it.

    An association is a thread, and open while that lives. Its connection's end is no sign: a
    sender that hangs up during an image is heard to go before its image is heard of.
    """

    last: dict[str, float] = field(default_factory=dict)
    senders: dict[str, set[threading.Thread]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def heard(self, study: str, association: threading.Thread | None = None) -> None:
        with self.lock:
            self.last[study] = time.monotonic()
            if association is not None:
                self.senders.setdefault(study, set()).add(association)

    def take_quiet(self, seconds: float) -> list[str]:
        """Studies of which nothing more is expected; they are forgotten here."""
        with self.lock:
            limit = time.monotonic() - seconds
            quiet = [
                study
                for study, last in self.last.items()
                if last <= limit and not any(one.is_alive() for one in self.senders.get(study, ()))
            ]
            for study in quiet:
                del self.last[study]
                self.senders.pop(study, None)
            return quiet


class Listener:
    """A storage SCP with one worker that scores and sends."""

    def __init__(
        self,
        spool: Spool,
        score: ScoreStudy,
        destination: Destination,
        settings: ListenSettings | None = None,
    ) -> None:
        self.settings = settings or ListenSettings()
        self._spool = spool
        self._score = score
        self._destination = destination
        self._arrivals = _Arrivals()
        self._stop = threading.Event()
        self._server: Any = None
        self._next_try = 0.0
        self._stuck = Retries(_LONGEST_WAIT_S)
        self._failing = Retries(_LONGEST_WAIT_S)
        self._wait_s = 1.0

    @property
    def port(self) -> int:
        """The port that is listened on, once started."""
        return int(self._server.socket.getsockname()[1])

    def start(self) -> None:
        """Listen; studies are stored from now on, and scored while `run` runs."""
        self.settings.check()
        self._spool.claim()
        for study in self._spool.arriving():
            self._arrivals.heard(study)
        settings = self.settings
        evt = require("pynetdicom", "pacs").evt
        try:
            self._server = _storage_scp(settings).start_server(
                (settings.host, settings.port),
                block=False,
                evt_handlers=[
                    (evt.EVT_CONN_OPEN, limit, [_SILENCE_S, settings.max_instance_bytes]),
                    (evt.EVT_C_STORE, self._on_store),
                ],
            )
        except OSError as error:
            self._spool.release()
            raise InputError(
                f"Cannot listen on {settings.host}:{settings.port}: {error.strerror}. Choose "
                "another --port."
            ) from error
        _log.info("%s listens on %s:%d", settings.ae_title, settings.host, self.port)

    def run(self) -> None:
        """Score and send until `stop` is called."""
        try:
            while not self._stop.is_set():
                try:
                    self.step()
                    self._stop.wait(_TICK_S)
                except Exception as error:  # whatever it is, images must still be taken
                    # Such as a full disk, of which _on_store tells the senders. All stays as it is.
                    _log.error("waiting %.0f s: %s", _LONGEST_WAIT_S, _in_words(error))
                    self._stop.wait(_LONGEST_WAIT_S)
        finally:  # whatever ended it: nobody would score what is confirmed from here on
            self._server.shutdown()
            for association in self._server.active_associations:  # they outlive their server
                if association.is_established:
                    association.abort(block=False)
            self._spool.release()
            self._destination.close()

    def step(self) -> None:
        """Seal the studies that have become quiet, and deal with all that is sealed.

        A full disk raises, but only when each had its turn: what is done makes room.
        """
        quiet = self._arrivals.take_quiet(self.settings.quiet_seconds)
        errors = [self._seal(study) for study in quiet]
        for each in self._spool.rounds():
            if self._stop.is_set():
                return
            if self._failing.is_due(each.folder):
                errors.append(self._try(each))
        for error in filter(None, errors):
            raise error

    def stop(self) -> None:
        """Let `run` end after the result at hand; from another thread or a signal."""
        self._stop.set()

    def _seal(self, study: str) -> Exception | None:
        """Make a round of a study; gives the error of a full disk, for which it is not to blame."""
        try:
            self._spool.seal(study)
        except Exception as error:  # one study must not stop those behind it
            self._arrivals.heard(study)
            if is_full(error):
                return error
            _log.error("study %s: cannot be taken up: %s", study, _in_words(error))
        return None

    def _try(self, each: Round) -> Exception | None:
        """Deal with a round; gives the error of a full disk, for which it is not to blame."""
        try:
            self._deal_with(each)
        except Exception as error:  # one round must not stop those behind it
            if is_full(error):
                return error
            _log.error("study %s: waits: %s", each.name, _in_words(error))
            self._failing.postpone(each.folder)
        else:
            self._failing.forget(each.folder)
        return None

    def _deal_with(self, each: Round) -> None:
        try:
            if not each.results.exists():
                if not self._spool.sift(each):
                    _log.info("study %s: nothing new in it", each.name)
                    return
                self._score_round(each)
            if self._send(each):
                self._spool.finish(each)
                _log.info("study %s: done", each.name)
        except _GivenUp as error:
            _log.error("study %s: given up: %s", each.name, error)
            self._spool.fail(each, str(error))

    def _score_round(self, each: Round) -> None:
        # A study that brings the process down must not do so for ever.
        if each.count_attempt() > _MAX_ATTEMPTS:
            raise _GivenUp(f"scoring it was begun {_MAX_ATTEMPTS} times and never ended")
        partial = each.folder / "results.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        _log.info("study %s: scoring", each.name)
        try:
            unscored = self._score(each.images, partial)
            if unscored:
                self._spool.set_aside(each, unscored)
        except Exception as error:  # one study must not stop those behind it
            if is_full(error):  # nor is it to blame: `run` waits for room
                each.forget_attempts()
                shutil.rmtree(partial, ignore_errors=True)
                raise
            if isinstance(error, RecapError):
                raise _GivenUp(str(error)) from error
            log_failure(_log, error, f"scoring study {each.name}")
            raise _GivenUp(f"scoring failed ({type(error).__name__})") from error
        each.keep_results(partial)
        # Not to be remembered as dealt with: if they are sent again, they are tried again.
        for path in (path for failed in unscored for path in failed.files):
            path.unlink(missing_ok=True)

    def _send(self, each: Round) -> bool:
        """Send what is not sent; false if that has to wait."""
        unsent = [path for path in each.unsent() if self._stuck.is_due(path)]
        if unsent and time.monotonic() < self._next_try:
            return False
        for path in unsent:
            if self._stop.is_set():
                return False
            try:
                answer = self._destination.send(path)
            except StuckError as error:  # it must not hold up the others
                _log.error("study %s: %s waits: %s", each.name, path.name, error)
                self._stuck.postpone(path)
                continue
            except SendError as error:
                self._next_try = time.monotonic() + self._wait_s
                _log.warning("results wait %.0f s: %s", self._wait_s, error)
                self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
                return False
            self._wait_s = 1.0
            if answer == "refused":
                _log.warning("study %s: the archive does not take %s", each.name, path.name)
            each.note_answer(path, answer)
            self._stuck.forget(path)
        self._destination.close()
        return not each.unsent()

    def _on_store(self, event: Any) -> int:
        """Keep one image; success is answered only when it is on disk."""
        try:
            data = event.encoded_dataset()
            names = _names(data)
            if names is None:
                return _SUCCESS
            study_uid, series_uid, instance_uid = names
            full = not self._spool.has_room(len(data), self.settings.max_spool_bytes)
            if full or self._spool.count(study_uid) >= self.settings.max_instances:
                _log.error("an image was refused: %s", "the spool is full" if full else "too many")
                return _OUT_OF_RESOURCES
            study = self._spool.store(study_uid, series_uid, instance_uid, data)
        except OSError as error:
            _log.error("an image could not be kept: %s", error.strerror)
            return _OUT_OF_RESOURCES
        except Exception as error:  # pydicom on hostile data may raise anything
            _log.warning("an image was not understood (%s)", type(error).__name__)
            return _NOT_UNDERSTOOD
        self._arrivals.heard(study, event.assoc)
        return _SUCCESS


class _GivenUp(Exception):  # noqa: N818
    """A round will not be tried again."""


def _in_words(error: Exception) -> str:
    """Word an error for a log: the text of a foreign one may quote a file."""
    return str(error) if isinstance(error, OSError | RecapError) else type(error).__name__


def _names(data: bytes) -> tuple[str, str, str] | None:
    """Study, series and instance of an image; None for what recap itself has made."""
    from recap.io.dicom.file import scan_bytes
    from recap.io.dicom.header import MAKER_KEYWORDS, is_own

    uids = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID")
    header = scan_bytes(data, [*uids, *MAKER_KEYWORDS])
    # An archive that sends on all that it gets would have us score our own results.
    if is_own(header):
        return None
    study, series, instance = (str(header.get(keyword) or "") for keyword in uids)
    if not (study and series and instance):
        raise ValueError("an image without UIDs")
    return study, series, instance


def _storage_scp(settings: ListenSettings) -> Any:
    """Make an application entity that takes all kinds of images in all transfer syntaxes."""
    pynetdicom = require("pynetdicom", "pacs")
    # Its messages may hold what peers send.
    logging.getLogger("pynetdicom").setLevel(logging.CRITICAL)
    ae = pynetdicom.AE(ae_title=settings.ae_title)
    for context in pynetdicom.AllStoragePresentationContexts:
        ae.add_supported_context(context.abstract_syntax, pynetdicom.ALL_TRANSFER_SYNTAXES)
    ae.add_supported_context(require("pynetdicom.sop_class", "pacs").Verification)
    ae.require_called_aet = True
    ae.require_calling_aet = list(settings.calling)
    ae.maximum_associations = settings.max_associations
    ae.acse_timeout = ae.dimse_timeout = 30
    ae.network_timeout = _SILENCE_S
    return ae
