"""Forms with files, written to disk while they arrive and cut off at the limit."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fastapi import HTTPException, Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool

from recap.service.settings import ServerSettings

MOST_FIELDS, LONGEST_FIELD, LONGEST_FIELD_NAME = 32, 2**16, 64
MOST_HEADERS, LONGEST_HEADER = 8, 4096
# A client that is told "too large" in the middle of sending hears it only if somebody listens.
_DRAINED_BYTES, _DRAINED_SECONDS = 32 * 2**20, 5.0


@dataclass(frozen=True)
class UploadedFile:
    """A file of a form: its field, what the client calls it, and its name in the raw folder."""

    field: str
    given: str
    raw: str


@dataclass
class Form:
    """All of a form."""

    files: list[UploadedFile] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)

    def files_of(self, name: str) -> list[UploadedFile]:
        """List the files of a field, written with or without []."""
        return [file for file in self.files if file.field.removesuffix("[]") == name]


async def receive_form(request: Request, raw: Path, settings: ServerSettings) -> Form:
    """Read a multipart form; files go to `raw` under numbers."""
    boundary = _boundary(request)
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:18]) > settings.max_upload_bytes:
        raise _too_large(settings)
    raw.mkdir(parents=True)
    parser = _FormParser(boundary, raw, settings)
    stream = request.stream()
    received = 0
    try:
        while True:
            async with asyncio.timeout(settings.read_seconds):
                block = await anext(stream, b"")
            if not block:
                break
            received += len(block)
            if received > settings.max_upload_bytes:
                raise _too_large(settings)
            await run_in_threadpool(parser.write, block)
        return parser.finish()
    except TimeoutError as error:
        raise HTTPException(408, "The upload stood still for too long. Send it again.") from error
    except HTTPException:
        await _drain(stream)
        raise
    finally:
        parser.close()


async def _drain(stream: AsyncIterator[bytes]) -> None:
    left = _DRAINED_BYTES
    try:
        async with asyncio.timeout(_DRAINED_SECONDS):
            while left > 0 and (block := await anext(stream, b"")):
                left -= len(block)
    except TimeoutError:
        return


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data":
        raise HTTPException(415, "Send the files as a form (multipart/form-data).")
    boundary = options.get(b"boundary", b"")
    if not 0 < len(boundary) <= 70:  # RFC 2046
        raise HTTPException(400, "The form has no valid boundary.")
    return boundary


def _too_large(settings: ServerSettings) -> HTTPException:
    return HTTPException(
        413, f"An upload may have {settings.max_upload_mb} MB, all files together."
    )


class _FormParser:
    """Feeds the parser's callbacks into files and fields, never more than the limits allow."""

    def __init__(self, boundary: bytes, raw: Path, settings: ServerSettings) -> None:
        self._form = Form()
        self._raw = raw
        self._settings = settings
        self._headers: dict[bytes, bytes] = {}
        self._name, self._value = b"", b""
        self._field: str | None = None
        self._text = b""
        self._file: IO[bytes] | None = None
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._headers.clear,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers,
                "on_part_data": self._on_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )

    def write(self, block: bytes) -> None:
        """Take the next bytes."""
        try:
            self._parser.write(block)
        except FormParserError as error:
            raise HTTPException(400, "The form is damaged. Send it again.") from error

    def finish(self) -> Form:
        """Return the form, if its end has come."""
        if not self._ended:
            raise HTTPException(400, "The form ends too early. Send it again.")
        return self._form

    def close(self) -> None:
        """Close the file that was being written."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name = self._longer(self._name, data[start:end])

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value = self._longer(self._value, data[start:end])

    def _longer(self, text: bytes, more: bytes) -> bytes:
        if len(text) + len(more) > LONGEST_HEADER or len(self._headers) >= MOST_HEADERS:
            raise HTTPException(400, "A part of the form has too long a head.")
        return text + more

    def _on_header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name, self._value = b"", b""

    def _on_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        if not (name := options.get(b"name")) or len(name) > LONGEST_FIELD_NAME:
            raise HTTPException(400, "A part of the form has no name, or one that is too long.")
        self._field = name.decode("utf-8", "replace")
        self._text = b""
        given = options.get(b"filename", options.get(b"filename*"))
        if given is not None:
            self._open_file(given.decode("utf-8", "replace"))
        elif len(self._form.fields) >= MOST_FIELDS:
            raise HTTPException(400, f"A form may have {MOST_FIELDS} fields.")

    def _open_file(self, given: str) -> None:
        number = len(self._form.files)
        if number >= self._settings.max_files:
            raise HTTPException(413, f"An upload may have {self._settings.max_files} files.")
        raw = f"{number:06d}"
        self._form.files.append(UploadedFile(self._field or "", given[:1000] or "file", raw))
        self._file = (self._raw / raw).open("xb")

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._file.write(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > LONGEST_FIELD:
            raise HTTPException(413, f"A field may have {LONGEST_FIELD} bytes.")

    def _on_part_end(self) -> None:
        if self._file is not None:
            self.close()
        elif self._field is not None:
            self._form.fields[self._field] = self._text.decode("utf-8", "replace")
        self._field = None

    def _on_end(self) -> None:
        self._ended = True
