"""A DICOMweb archive: find studies, fetch them, store results (QIDO-RS, WADO-RS, STOW-RS)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from recap._files import replacing
from recap.data.folder import walk
from recap.errors import InputError, SettingsError, require
from recap.io.dicom.file import read_whole
from recap.io.formats import sniff
from recap.service.pacs.spool import key_of

_TIMEOUT_S = 60
_REDIRECTS, _CONFLICT, _TOO_LARGE = range(300, 400), 409, 413
STORED = 0x0000
OUT_OF_RESOURCES = range(0xA700, 0xA800)
"""Reasons not to store an object that are the archive's, not the object's."""


class ArchiveError(InputError, code="archive"):
    """An archive that does not answer, or not as it should."""

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class DicomWeb:
    """A client of one archive.

    >>> archive = DicomWeb("http://localhost:8042/dicom-web")     # doctest: +SKIP
    >>> [study] = archive.find_studies(PatientID="4711")          # doctest: +SKIP
    >>> archive.fetch(study["StudyInstanceUID"], Path("study"))   # doctest: +SKIP
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise SettingsError(
                f"'{url}' is no address of a DICOMweb archive: http(s)://HOST/PATH."
            )
        if token and parts.scheme != "https" and parts.hostname not in _LOOPBACK:
            raise SettingsError(f"'{url}': a token is only sent over https. Use https://.")
        self.url = url.rstrip("/")
        session = _session(token)
        api = require("dicomweb_client.api", "pacs")
        self._client = api.DICOMwebClient(url=self.url, session=session)
        # Whoever calls knows better how long to wait, and must not be blocked meanwhile.
        self._client.set_http_retry_params(retry=False)

    def find_studies(self, limit: int | None = None, **filters: str) -> list[dict[str, str]]:
        """Studies that fit: their UIDs and descriptions, by keyword (PatientID=…, StudyDate=…)."""
        with self._asking():
            found = self._client.search_for_studies(limit=limit, search_filters=filters)
        dataset = require("pydicom.dataset", "pacs").Dataset
        wanted = ("StudyInstanceUID", "StudyDate", "StudyDescription", "ModalitiesInStudy")
        return [
            {keyword: _text(study.get(keyword)) for keyword in wanted}
            for study in map(dataset.from_json, found)
        ]

    def fetch(self, study_uid: str, folder: Path) -> list[Path]:
        """Fetch everything that a study holds, images or not, into a folder."""
        paths = []
        with self._asking():
            for dataset in self._client.iter_study(study_uid):
                path = folder / f"{key_of(str(dataset.SOPInstanceUID))}.dcm"
                with replacing(path) as file:
                    dataset.save_as(file, enforce_file_format=True)
                paths.append(path)
        return paths

    def store(self, paths: Path | Sequence[Path]) -> int:
        """Store files, and all DICOM files below folders; how many of them the archive took."""
        files = _dicom_files([paths] if isinstance(paths, Path) else paths)
        return sum(self.store_file(path) == STORED for path in files)

    def store_file(self, path: Path) -> int | None:
        """Store one DICOM file: `STORED`, or why the archive did not take it; None if it is silent.

        The reasons are those of FailureReason (PS3.18, annex I), which are those of C-STORE.
        """
        requests = require("requests", "pacs")
        dataset = read_whole(path)  # what is wrong with a file is not the archive's doing
        with self._asking():
            try:
                answer = self._client.store_instances([dataset])
            except requests.HTTPError as error:
                if error.response is None or error.response.status_code != _CONFLICT:
                    raise
                return self._failure(_said(error.response))
        return self._outcome(answer, str(dataset.SOPInstanceUID))

    def _outcome(self, answer: Any, instance_uid: str) -> int | None:
        """Read the archive's word on an object; it must say that it has it, or the contrary."""
        named = answer.get("ReferencedSOPSequence") or ()
        if instance_uid in (str(item.get("ReferencedSOPInstanceUID")) for item in named):
            return STORED
        if answer.get("FailedSOPSequence"):
            return self._failure(answer)
        # PS3.18 demands that an answer names what was stored. One that names nothing may come from
        # a page to sign in, or an archive that stored nothing: whoever believed it would delete
        # what is nowhere else.
        raise ArchiveError(
            f"The DICOMweb archive at {self.url} answered, but does not say that it stored the "
            "object. Check its address and your token.",
            None,
        )

    def _failure(self, answer: Any) -> int | None:
        """Read the first reason; raise if the archive is full, which says nothing of the object."""
        failed = answer.get("FailedSOPSequence") or ()
        reasons = [item.get("FailureReason") for item in failed]
        if any(reason in OUT_OF_RESOURCES for reason in reasons):
            message = f"The DICOMweb archive at {self.url} has no room. Make some, or wait."
            raise ArchiveError(message, None)
        # No reason at all, and one of zero or in words, are no reason to believe in success.
        return next((each for each in reasons if isinstance(each, int) and each != STORED), None)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        requests = require("requests", "pacs")
        try:
            yield
        except (requests.RequestException, OSError) as error:
            # The exception's own words may hold the query, and that a patient's name.
            response = getattr(error, "response", None)
            status = None if response is None else int(response.status_code)
            said = "is not there" if status is None else f"answered {status}"
            advice = "Check its address and your token."
            if status == _TOO_LARGE:
                advice = "It, or a proxy before it, takes nothing so large: raise that limit."
            message = f"The DICOMweb archive at {self.url} {said}. {advice}"
            raise ArchiveError(message, status) from error


def _said(response: Any) -> Any:
    """Parse the answer to a store, if it can be read: the reasons are optional."""
    dataset = require("pydicom.dataset", "pacs").Dataset
    try:
        return dataset.from_json(response.text)
    except Exception:  # whatever a stranger sends: pydicom raises all kinds
        return dataset()


_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _session(token: str | None) -> Any:
    """Make a session that does not wait for ever and follows no redirect."""
    requests = require("requests", "pacs")
    session = requests.Session()
    if token:
        session.headers["Authorization"] = f"Bearer {token}"
    send = session.send

    def send_once(request: Any, **options: Any) -> Any:
        timeout = options.get("timeout") or _TIMEOUT_S
        # A POST that is redirected becomes a GET, whose answer says nothing of what was sent.
        answer = send(request, **{**options, "timeout": timeout, "allow_redirects": False})
        if answer.status_code in _REDIRECTS:
            raise requests.HTTPError(response=answer)
        kind = answer.headers.get("Content-Type", "")
        if "json" in kind or "xml" in kind:
            # dicomweb_client takes "application/dicom+json; charset=utf-8" for another type.
            answer.headers["Content-Type"] = kind.partition(";")[0].strip().lower()
        return answer

    session.send = send_once
    return session


def _dicom_files(paths: Sequence[Path]) -> list[Path]:
    """Files as given, and the DICOM files below folders; each once. Refuses what is not DICOM."""
    found: dict[Path, None] = {}  # a folder may be given along with its files
    for path in paths:
        if path.is_dir():
            # Results are what is sent, so their folders are entered.
            files = sorted(walk(path, enter=lambda folder: True))
            below = [file for file in files if sniff(file) == "dicom"]
            if not below:
                raise InputError(f"{path}: there is no DICOM file in this folder. Name another.")
            found.update(dict.fromkeys(below))
        elif sniff(path) == "dicom":
            found[path] = None
        else:
            raise InputError(
                f"{path}: this is no DICOM file, so it cannot be stored. Leave it out."
            )
    return list(found)


def _text(value: Any) -> str:
    several = not isinstance(value, str) and hasattr(value, "__iter__")
    return "\\".join(map(str, value)) if several else str(value or "")
