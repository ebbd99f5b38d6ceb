"""What every route needs: the service, a checked client, and things that must exist."""

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Path, Query, Request
from fastapi.responses import StreamingResponse

from recap.service.answers import Problem
from recap.service.jobs import Job
from recap.service.results import Result
from recap.service.service import Service
from recap.service.settings import NAME
from recap.service.store import ID_PATTERN

API = "/api/v1"
MOST_LISTED = 1000


def service_of(request: Request) -> Service:
    """The service behind the routes."""
    return request.app.state.service


TheService = Annotated[Service, Depends(service_of)]


def own_pages_only(request: Request, service: TheService) -> None:
    """Refuse what another site makes a browser send."""
    service.gate.check_origin(request)


def signed_in(request: Request, service: TheService) -> None:
    """Refuse whoever has no token."""
    service.gate.check(request)


def found_job(service: TheService, job: Annotated[str, Path(pattern=ID_PATTERN)]) -> Job:
    """The job of an address, or 404."""
    found = service.jobs.get(job)
    if found is None:
        raise HTTPException(404, "There is no such job.")
    return found


TheJob = Annotated[Job, Depends(found_job)]


def found_result(service: TheService, job: TheJob) -> Result:
    """The result of a job of scoring, or why there is none."""
    if job.kind != "score":
        raise HTTPException(404, "This job scores nothing: its result is a bundle.")
    if job.status != "done":
        raise HTTPException(409, f"The job is {job.status}: there is no result.")
    return Result(service.jobs.result_folder(job))


TheResult = Annotated[Result, Depends(found_result)]


def found_case(result: TheResult, case: Annotated[str, Path(max_length=400)]) -> dict[str, Any]:
    """A case by its number or its name, or 404."""
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
    """The description of a form, which is read by hand while it arrives."""
    schema = {"type": "object", "properties": properties, "required": required}
    content = {"multipart/form-data": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def attached_zip(blocks: Iterator[bytes], name: str) -> StreamingResponse:
    """A zip that browsers save under a name, sent block by block."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(blocks, media_type="application/zip", headers=headers)
