"""From a request with files to an accepted job: what a form asks for, and whether it is taken."""

import hashlib
import hmac
import json
import logging
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import HTTPException, Request
from pydantic import Field, ValidationError
from starlette.concurrency import run_in_threadpool

from recap._download import sha256_of
from recap.config import ReadingSettings, Section, Settings
from recap.data.folder import pair_masks
from recap.errors import InputError, RecapError, counted, log_failure
from recap.methods.recap.settings import Preset
from recap.methods.registry import resolve_settings
from recap.service.auth import client_of
from recap.service.bundles import Bundles
from recap.service.inspector import NO_ROOM_TEXT
from recap.service.jobs import Kind, NewJob, QueueFullError
from recap.service.placing import shown_name, split_suffix
from recap.service.service import Service
from recap.service.settings import MEGABYTE, NAME
from recap.service.store import new_id, remove
from recap.service.uploads import Form, UploadedFile, receive_form

LONGEST_KEY = 200
_SPARE_BYTES = 512 * MEGABYTE
_log = logging.getLogger("recap.service")
Placed = tuple[str, str, str, str]
"""Name in the raw folder, the client's name, its role, its name here."""
ROLES = ("normals", "abnormals", "masks")


@dataclass(frozen=True)
class Wanted:
    """The wish of a form, understood."""

    kind: Kind
    bundle: str
    reading: ReadingSettings
    files: list[Any]
    """Each file as the inspector is told of it."""
    options: dict[str, Any]


@dataclass(frozen=True)
class Sent:
    """Digests of a request, kept to know it again."""

    content: str
    """The same for the same files under the same names, in the same fields and order; clients see
    it. Empty where uploads are de-identified: it would tell whose files they are."""
    request: str
    """Of all that was sent under a key, of its address and of the key; under the data folder's
    secret, so that none can be found by trying."""


Understand = Callable[[Service, Form], Wanted]


async def submit(request: Request, service: Service, understand: Understand) -> str:
    """Receive a form, have its files looked at, and take the job on; returns its id."""
    if wait := service.posts.wait_seconds(client_of(request)):
        raise HTTPException(429, "Too many requests.", {"Retry-After": str(int(wait) + 1)})
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
            log_failure(_log, error, f"upload {job}")
            raise RecapError(NO_ROOM_TEXT, code="no_room") from error
        finally:
            await run_in_threadpool(remove, folder)


def _accept(
    service: Service, form: Form, job: str, understand: Understand, address: str, key: str | None
) -> str:
    folder = service.jobs.store.incoming(job)
    size = sum(file.stat().st_size for file in (folder / "raw").iterdir())
    service.metrics.received(size)
    hide = service.settings.deidentify
    sent = _sent(service, form, folder / "raw", address, key)
    if key and (before := service.jobs.by_key(key)):
        return _repeated(service, before, sent)
    wanted = understand(service, form)
    answer = service.inspection.check(_question(service, folder, wanted))
    if answer["code"]:
        raise InputError(answer["detail"], code=answer["code"])
    names = dict.fromkeys(answer["names"], "") if hide else answer["names"]
    told = {"deidentify": hide, "problems": answer["problems"]}
    options = {**wanted.options, **told, **asdict(sent)}
    new = NewJob(job, wanted.kind, wanted.bundle, options, names, answer["images"], key)
    accepted = service.jobs.accept(new)
    return accepted if accepted == job else _repeated(service, accepted, sent)


def _repeated(service: Service, before: str, sent: Sent) -> str:
    """Find the job that a key was used for; another request must not get its result."""
    job = service.jobs.get(before)
    if job is not None and not hmac.compare_digest(job.options["request"], sent.request):
        raise HTTPException(422, "This Idempotency-Key was used for another request.")
    return before


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
    """Read the key of a client: a request that is repeated under it gets the same job."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= LONGEST_KEY:
        raise HTTPException(422, f"An Idempotency-Key has 1 to {LONGEST_KEY} characters.")
    return key


def _sent(service: Service, form: Form, folder: Path, address: str, key: str | None) -> Sent:
    """Digest a request.

    Cases of two jobs are matched by their names, and equal names are numbered in order: the files
    alone would let one patient's image stand beside another's.
    """
    hide = service.settings.deidentify
    if hide and key is None:
        return Sent("", "")
    files = [(each.field.removesuffix("[]"), each.given, each.raw) for each in form.files]
    told = [(field, given, sha256_of(folder / raw)) for field, given, raw in files]
    content = "" if hide else hashlib.sha256(json.dumps(told).encode()).hexdigest()
    asked = json.dumps([key, address, sorted(form.fields.items()), told])
    return Sent(content, service.jobs.store.digest(asked) if key else "")


def score_wanted(service: Service, form: Form) -> Wanted:
    """Read a form that asks for files to be scored."""
    bundle = form.fields.get("bundle") or service.bundles.first()
    card = service.bundles.card(bundle)
    if card is None:
        raise HTTPException(422, "bundle: none is called so. GET /api/v1/bundles lists them.")
    if not form.files:
        raise HTTPException(422, "Send at least one file in the field file.")
    files = [(file.raw, file.given) for file in form.files]
    return Wanted("score", bundle, card.reading, files, {})


def fit_wanted(service: Service, form: Form) -> Wanted:
    """Read a form that asks for a new detector."""
    options = _options(form, FitOptions)
    settings = _fit_settings(options, service.bundles)
    if service.bundles.bundle(options.name) is not None:
        raise HTTPException(409, "options.name: a bundle is called so already.")
    told = {
        "name": options.name,
        "settings": settings.model_dump(mode="json"),
        "keep_thumbnails": options.keep_thumbnails,
    }
    return Wanted("fit", options.name, settings.reading, _placed_support(form), told)


def calibration_wanted(service: Service, form: Form, bundle: str) -> Wanted:
    """Read a form that asks for a detector to be calibrated."""
    card = service.bundles.card(bundle)
    if card is None:
        raise HTTPException(404, "There is no such bundle.")
    if form.files_of("masks"):
        raise HTTPException(422, "A calibration takes no masks.")
    told: dict[str, Any] = {"calibrate": _options(form, CalibrateOptions).model_dump()}
    return Wanted("calibrate", bundle, card.reading, _placed_support(form), told)


class FitOptions(Section):
    """Options of a fit. The encoder is that of a bundle that is here already."""

    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")] = "fitted"
    preset: Preset = "recap"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    epochs: Annotated[int, Field(ge=1, le=1000)] | None = None
    augment: bool = True
    encoder_of: str | None = None
    keep_thumbnails: bool = False
    """Small pictures of the normal images go into the bundle; they are images of patients."""


class CalibrateOptions(Section):
    """Options of a calibration."""

    fpr: Annotated[float, Field(gt=0, lt=1)] = 0.05
    sensitivity: Annotated[float, Field(gt=0, lt=1)] = 0.95
    decide_by: Literal["fpr", "f1", "youden", "sensitivity"] = "fpr"


def _options(form: Form, kind: type[Section]) -> Any:
    """Read the form's options, a JSON object; fields of the same names count too."""
    try:
        given = json.loads(form.fields.get("options") or "{}")
        if not isinstance(given, dict):
            raise HTTPException(422, "options must be a JSON object.")
        plain = {k: v for k, v in form.fields.items() if k in kind.model_fields and k not in given}
        return kind.model_validate({**plain, **given})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise HTTPException(422, f"options.{place}: {first['msg']}.") from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(422, "options is not JSON.") from error


def _placed_support(form: Form) -> list[Placed]:
    """Give every file its role and a name; a mask gets the name of its image."""
    files = {role: form.files_of(role) for role in ROLES}
    if not files["normals"]:
        raise HTTPException(422, "Send at least one file in the field normals.")
    if len(form.files) != sum(map(len, files.values())):
        raise HTTPException(422, f"Files go into the fields {', '.join(ROLES)}.")
    placed = [
        _placed(file, role, f"{number:06d}")
        for role in ("normals", "abnormals")
        for number, file in enumerate(files[role])
    ]
    stems = {file.raw: f"{number:06d}" for number, file in enumerate(files["abnormals"])}
    pairs = _masks_of(files["abnormals"], files["masks"])
    return placed + [_placed(mask, "masks", stems[image.raw]) for mask, image in pairs]


def _placed(file: UploadedFile, role: str, stem: str) -> Placed:
    shown = shown_name(file.given)
    return file.raw, shown, role, stem + split_suffix(shown)[1]


def _masks_of(
    images: list[UploadedFile], masks: list[UploadedFile]
) -> list[tuple[UploadedFile, UploadedFile]]:
    """Match each mask with its image, by the names that the client gave them."""
    by_image = {Path(shown_name(file.given)): file for file in images}
    by_mask = {Path(shown_name(file.given)): file for file in masks}
    if (len(by_image) < len(images) and masks) or len(by_mask) < len(masks):
        raise HTTPException(422, "Two files have the same name, so masks cannot be matched.")
    pairs = pair_masks(list(by_image), list(by_mask))
    if pairs.ambiguous:
        raise HTTPException(422, "An image has two masks, or shares its name with another image.")
    if pairs.orphans:
        raise HTTPException(
            422,
            f"{counted(len(pairs.orphans), 'mask')} without an abnormal image. A mask has its "
            "image's name, or that name and _mask.",
        )
    return [(by_mask[mask], by_image[image]) for image, mask in pairs.matched.items()]


def _fit_settings(options: FitOptions, bundles: Bundles) -> Settings:
    """Resolve the settings of a fit: the preset's, on the encoder and the reading of a bundle."""
    base = bundles.card(options.encoder_of or bundles.first())
    if base is None:
        raise HTTPException(422, "options.encoder_of: no bundle is called so.")
    training: dict[str, Any] = {"augment": options.augment}
    if options.epochs is not None:
        training["epochs"] = options.epochs
    encoder = base.settings.encoder.model_dump(mode="json")
    reading = base.settings.reading.model_dump(mode="json")
    return resolve_settings(
        options.preset, seed=options.seed, encoder=encoder, reading=reading, training=training
    )
