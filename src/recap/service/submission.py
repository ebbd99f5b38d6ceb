"""From a request with files to an accepted job."""

import hashlib
import hmac
import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastapi import HTTPException, Request
from starlette.concurrency import run_in_threadpool

from recap.config import ReadingSettings
from recap.errors import InputError, RecapError
from recap.failures import log_failure
from recap.fetch import sha256_of
from recap.service.auth import client_of
from recap.service.inspector import NO_ROOM_TEXT
from recap.service.jobs import Job, Kind, NewJob, QueueFullError
from recap.service.logs import log
from recap.service.service import Service
from recap.service.settings import MEGABYTE
from recap.service.store import new_id, remove
from recap.service.uploads import Form, receive_form

LONGEST_KEY = 200
_SPARE_BYTES = 512 * MEGABYTE


@dataclass(frozen=True)
class Wanted:
    """What a form asks for."""

    kind: Kind
    bundle: str
    reading: ReadingSettings
    files: list[Any]
    """What the inspector is told of each file."""
    options: dict[str, Any]


@dataclass(frozen=True)
class Sent:
    """What is kept of a request, to know it again."""

    content: str
    """The same for the same files under the same names, in the same fields and order; clients see
    it. Empty where uploads are de-identified: it would tell whose files they are."""
    request: str
    """Of all that was sent under a key, and of the key; under the data folder's secret, so that
    neither can be found by trying."""
    address: str


Understand = Callable[[Service, Form], Wanted]


async def submit(request: Request, service: Service, understand: Understand) -> str:
    """Receive a form, have its files looked at, and take the job on; returns its id."""
    _slow_down(request, service)
    key = _client_key(request)
    if key is None or await run_in_threadpool(service.jobs.by_key, key) is None:
        await run_in_threadpool(_refuse_if_full, service)
    with service.uploads.taken() as held:
        if not held:
            raise _later(service, "Too many uploads at a time.")
        job = new_id()
        folder = service.jobs.store.incoming(job)
        try:
            form = await receive_form(request, folder / "raw", service.settings)
            address = request.url.path
            return await run_in_threadpool(_accept, service, form, job, understand, address, key)
        except QueueFullError as error:
            raise _later(service, "The queue is full.") from error
        except (OSError, sqlite3.OperationalError) as error:
            log_failure(log, error, f"upload {job}")
            raise RecapError(NO_ROOM_TEXT, code="no_room") from error
        finally:
            await run_in_threadpool(remove, folder)


def _accept(
    service: Service, form: Form, job: str, understand: Understand, address: str, key: str | None
) -> str:
    folder = service.jobs.store.incoming(job)
    service.metrics.received(_size(folder / "raw"))
    hide = service.settings.deidentify
    sent = _sent(service, form, folder / "raw", address, key)
    if key and (before := service.jobs.by_key(key)):
        return _repeated(service, before, form, sent)
    wanted = understand(service, form)
    answer = service.inspection.check(_question(service, folder, wanted))
    if answer["code"]:
        raise InputError(answer["detail"], code=answer["code"])
    names = dict.fromkeys(answer["names"], "") if hide else answer["names"]
    told = {"deidentify": hide, "problems": answer["problems"]}
    options = {**wanted.options, **told, **asdict(sent)}
    new = NewJob(job, wanted.kind, wanted.bundle, options, names, answer["images"], key)
    accepted = service.jobs.accept(new)
    return accepted if accepted == job else _repeated(service, accepted, form, sent)


def _repeated(service: Service, before: str, form: Form, sent: Sent) -> str:
    """The job that a key was used for; its result must not be taken for that of other files."""
    job = service.jobs.get(before)
    if job is not None and not _is_same(job, form, sent):
        raise HTTPException(422, "This Idempotency-Key was used for another request.")
    return before


def _is_same(job: Job, form: Form, sent: Sent) -> bool:
    kept = job.options
    if "request" in kept:
        return hmac.compare_digest(kept["request"], sent.request)
    # Earlier versions kept less, and nothing of files without identity.
    same_files = not (kept.get("content") and sent.content) or kept["content"] == sent.content
    asked = form.fields.get("bundle") or job.bundle, sent.address
    return same_files and asked == (job.bundle, kept.get("address", sent.address))


def _question(service: Service, folder: Path, wanted: Wanted) -> dict[str, Any]:
    settings = service.settings
    return {
        "task": wanted.kind,
        "folder": str(folder),
        "files": wanted.files,
        "reading": wanted.reading.model_dump(mode="json"),
        "max_files": settings.max_files,
        "max_unpacked": settings.max_unpacked_mb * MEGABYTE,
        "max_pixels": settings.max_pixels,
        "deidentify": settings.deidentify,
    }


def _slow_down(request: Request, service: Service) -> None:
    wait = service.posts.wait_seconds(client_of(request))
    if wait:
        raise HTTPException(429, "Too many requests.", {"Retry-After": str(int(wait) + 1)})


def _refuse_if_full(service: Service) -> None:
    try:
        service.jobs.refuse_if_full()
    except QueueFullError as error:
        raise _later(service, "The queue is full.") from error
    free = shutil.disk_usage(service.jobs.store.root).free
    if free < _SPARE_BYTES + service.settings.max_upload_bytes:
        raise RecapError(NO_ROOM_TEXT, code="no_room")


def _later(service: Service, reason: str) -> HTTPException:
    seconds = str(service.retry_seconds())
    return HTTPException(429, f"{reason} Try again later.", {"Retry-After": seconds})


def _client_key(request: Request) -> str | None:
    """A client that repeats a request under the same key gets the same job."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= LONGEST_KEY:
        raise HTTPException(422, f"An Idempotency-Key has 1 to {LONGEST_KEY} characters.")
    return key


def _sent(service: Service, form: Form, folder: Path, address: str, key: str | None) -> Sent:
    """Digests of a request.

    Cases of two jobs are matched by their names, and equal names are numbered in order: the files
    alone would let one patient's image stand beside another's.
    """
    hide = service.settings.deidentify
    if hide and key is None:
        return Sent("", "", address)
    files = [(each.field.removesuffix("[]"), each.given, each.raw) for each in form.files]
    told = [(field, given, sha256_of(folder / raw)) for field, given, raw in files]
    content = "" if hide else hashlib.sha256(json.dumps(told).encode()).hexdigest()
    asked = json.dumps([key, address, sorted(form.fields.items()), told])
    return Sent(content, service.jobs.store.digest(asked) if key else "", address)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
