"""Shapes of what addresses take and answer, as the API's description shows them."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import Depends, HTTPException, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from recap.service.jobs import Job, Jobs
from recap.service.results import Result
from recap.service.service import Service
from recap.service.settings import NAME
from recap.service.store import ID_PATTERN

API = "/api/v1"
MOST_LISTED = 1000


class Accepted(BaseModel):
    """A job was taken on."""

    id: str


class Progress(BaseModel):
    """Progress of a job; the stage says what is counted."""

    done: int
    total: int
    stage: str


class JobAnswer(BaseModel):
    """A job."""

    id: str
    kind: Literal["score", "fit", "calibrate"]
    status: Literal["queued", "running", "done", "failed", "cancelled"]
    bundle: str
    names: list[str]
    content: str
    """The same for jobs on the same files under the same names in the same order; empty where
    uploads are de-identified."""
    images: int
    progress: Progress
    error: str
    result: dict[str, Any] | None
    """Of scoring: how many cases, how many of them failed, and the first hundred in short. Of
    fitting: the bundle."""
    created: float
    started: float | None
    finished: float | None


class CaseAnswer(BaseModel):
    """A scored case; without a score, but with an error, if it could not be read."""

    id: int
    name: str
    status: Literal["ok", "error"]
    error: str
    code: str = ""
    """The kind of error, such as `too_large`; empty where there is none."""
    kind: str = ""
    images: int = 0
    score: float | None = None
    score_prototype: float | None = None
    score_memory: float | None = None
    image_scores: list[float] = []
    highest: int = 0
    """The number of the image with the highest score."""
    decision: dict[str, Any] | None = None
    undecided: str = ""
    """Why there is no decision."""
    domain: dict[str, Any] | None = None
    """Whether the case is like those that the detector knows; also where nothing was decided."""
    regions: list[dict[str, Any]] = []
    level: float | None = None
    """Regions are where the map reaches it."""
    calibration_digest: str = ""
    """Of the calibration that decided; the bundle may have another by now."""
    size_hw: tuple[int, int] | None = None
    source_size_hw: tuple[int, int] | None = None
    """Of a slide, of which a small picture is shown."""
    tiles: int | None = None
    spacing_mm: tuple[float, float] | None = None
    scale: tuple[float, float] | None = None
    dicom: bool = False
    """Whether there are results as DICOM."""


class BundleAnswer(BaseModel):
    """A detector that can be asked for."""

    name: str
    mode: str
    statement: str
    method: str
    preset: str
    encoder: str
    input_px: int
    fingerprint: str
    scale: tuple[float, float]
    support: dict[str, int]
    support_pictures: bool
    made_here: bool
    calibration: dict[str, Any] | None
    calibration_digest: str


class SessionAnswer(BaseModel):
    """The need for a token, and if this browser has given it."""

    needs_token: bool
    signed_in: bool


class Problem(BaseModel):
    """Why something was refused."""

    detail: Any
    code: str = ""
    """The kind of error, where recap raised one."""


def job_answer(job: Job, jobs: Jobs) -> JobAnswer:
    """Describe a job as it is told to clients."""
    watch = jobs.watch(job.id)
    total = watch.total or job.images
    match job.status:
        case "done":
            progress = Progress(done=total, total=total, stage="done")
        case "running":
            progress = Progress(done=watch.done, total=total, stage=watch.stage)
        case "queued" if not jobs.no_room.is_due(job.id):
            progress = Progress(done=0, total=total, stage="no room")
        case _:
            progress = Progress(done=0, total=total, stage=job.status)
    fields = {name: getattr(job, name) for name in JobAnswer.model_fields if hasattr(job, name)}
    fields["content"] = job.options.get("content", "")
    fields["names"] = sorted(set(job.names.values()) - {""})[:1000]
    fields["result"] = job.summary if job.status == "done" else None
    return JobAnswer(**{**fields, "progress": progress})


def service_of(request: Request) -> Service:
    """Find the service behind the routes."""
    return request.app.state.service


TheService = Annotated[Service, Depends(service_of)]


def own_pages_only(request: Request, service: TheService) -> None:
    """Refuse what another site makes a browser send."""
    service.gate.check_origin(request)


def signed_in(request: Request, service: TheService) -> None:
    """Refuse whoever has no token."""
    service.gate.check(request)


def found_job(service: TheService, job: Annotated[str, Path(pattern=ID_PATTERN)]) -> Job:
    """Find the job of an address, or 404."""
    found = service.jobs.get(job)
    if found is None:
        raise HTTPException(404, "There is no such job.")
    return found


TheJob = Annotated[Job, Depends(found_job)]


def found_result(service: TheService, job: TheJob) -> Result:
    """Find the result of a job of scoring, or why there is none."""
    if job.kind != "score":
        raise HTTPException(404, "This job scores nothing: its result is a bundle.")
    if job.status != "done":
        raise HTTPException(409, f"The job is {job.status}: there is no result.")
    return Result(service.jobs.result_folder(job))


TheResult = Annotated[Result, Depends(found_result)]


def found_case(result: TheResult, case: Annotated[str, Path(max_length=400)]) -> dict[str, Any]:
    """Find a case by its number or its name, or 404."""
    cases = result.read()["cases"]
    # All numbers before any name: a file may be called 1, and is not what cases/1 asks for.
    by_key = {record["name"]: record for record in cases}
    by_key |= {str(record["id"]): record for record in cases}
    if case not in by_key:
        raise HTTPException(404, "The job has no such case.")
    return by_key[case]


TheCase = Annotated[dict[str, Any], Depends(found_case)]
ImageNumber = Annotated[int, Path(ge=0, le=10**7)]
BundleName = Annotated[str, Path(pattern=f"^{NAME.pattern}$")]
Limit = Annotated[int, Query(ge=1, le=MOST_LISTED)]
Before = Annotated[str | None, Query(pattern=ID_PATTERN)]

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": meaning}
    for status, meaning in {
        401: "No token, or a wrong one.",
        403: "Sent by another site's page.",
        404: "Not here.",
        409: "Not now: the job is in another state, or the name is taken.",
        421: "A name that is not this machine's.",
        422: "Something is wrong with what was sent.",
        501: "Not with the extras that the service has.",
        429: "Too much at a time. Retry-After says when to come back.",
    }.items()
}
UPLOAD_PROBLEMS: dict[int | str, dict[str, Any]] = PROBLEMS | {
    status: {"model": Problem, "description": meaning}
    for status, meaning in {
        400: "The form is damaged.",
        408: "The upload stood still.",
        413: "Too large: bytes, files, unpacked bytes or pixels.",
        415: "Not a form, or files that no reader takes.",
        507: "The disk of the service is full.",
    }.items()
}
FILES = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
"""A field of a form that holds files, in the API's description."""


def form_body(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """Describe a form, which is read by hand while it arrives."""
    schema = {"type": "object", "properties": properties, "required": required}
    content = {"multipart/form-data": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def attached_zip(blocks: Iterator[bytes], name: str) -> StreamingResponse:
    """Send a zip that browsers save under a name, block by block."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(blocks, media_type="application/zip", headers=headers)
