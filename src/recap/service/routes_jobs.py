"""Addresses of jobs: upload, follow, cancel."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from recap.service.answers import Accepted, JobAnswer, job_answer
from recap.service.fits import FitOptions, fit_settings, place_support, read_options
from recap.service.requests import (
    API,
    FILES,
    PROBLEMS,
    UPLOAD_PROBLEMS,
    Before,
    Limit,
    TheJob,
    TheService,
    form_body,
)
from recap.service.service import Service
from recap.service.submission import Wanted, submit
from recap.service.uploads import Form

router = APIRouter(prefix=API, tags=["jobs"])
_LOOK_EVERY_SECONDS, _BEAT_SECONDS = 0.2, 15.0
_ENDED = ("done", "failed", "cancelled")


@router.post(
    "/jobs",
    status_code=202,
    responses=UPLOAD_PROBLEMS,
    openapi_extra=form_body({"file": FILES, "bundle": {"type": "string"}}, ["file"]),
)
async def score_files(request: Request, service: TheService) -> Accepted:
    """Score files: pictures, DICOM, NIfTI, NRRD, slides or zips of them, by one bundle."""
    return Accepted(id=await submit(request, service, _understand_scoring))


def _understand_scoring(service: Service, form: Form) -> Wanted:
    bundle = form.fields.get("bundle") or service.bundles.first()
    card = service.bundles.card(bundle)
    if card is None:
        raise HTTPException(422, "bundle: none is called so. GET /api/v1/bundles lists them.")
    if not form.files:
        raise HTTPException(422, "Send at least one file in the field file.")
    files = [(file.raw, file.given) for file in form.files]
    return Wanted("score", bundle, card.reading, files, {})


@router.post(
    "/fits",
    status_code=202,
    responses=UPLOAD_PROBLEMS,
    openapi_extra=form_body(
        {
            "normals": FILES,
            "abnormals": FILES,
            "masks": FILES,
            "options": {"type": "string", "description": "JSON: name, preset, seed, epochs, …"},
        },
        ["normals"],
    ),
)
async def fit_bundle(request: Request, service: TheService) -> Accepted:
    """Fit a detector on pictures or DICOM images; the job's result is a new bundle."""
    return Accepted(id=await submit(request, service, _understand_fit))


def _understand_fit(service: Service, form: Form) -> Wanted:
    options = read_options(form, FitOptions)
    settings = fit_settings(options, service.bundles)
    if service.bundles.bundle(options.name) is not None:
        raise HTTPException(409, "options.name: a bundle is called so already.")
    told = {
        "name": options.name,
        "settings": settings.model_dump(mode="json"),
        "keep_thumbnails": options.keep_thumbnails,
    }
    return Wanted("fit", options.name, settings.reading, place_support(form), told)


@router.get("/jobs", responses=PROBLEMS)
def list_jobs(service: TheService, limit: Limit = 50, before: Before = None) -> list[JobAnswer]:
    """The newest jobs; with `before`, those that came before that job."""
    if before is not None and service.jobs.get(before) is None:
        raise HTTPException(404, "before: there is no such job.")
    found = service.jobs.latest(limit, before)
    return [job_answer(job, service.jobs) for job in found]


@router.get("/jobs/{job}", responses=PROBLEMS)
def show_job(service: TheService, job: TheJob) -> JobAnswer:
    """One job."""
    return job_answer(job, service.jobs)


@router.post("/jobs/{job}/cancel", status_code=204, responses=PROBLEMS)
def cancel_job(service: TheService, job: TheJob) -> Response:
    """Cancel a job that waits or runs; one that has ended stays, with its result."""
    service.jobs.cancel(job.id)
    return Response(status_code=204)


@router.delete("/jobs/{job}", status_code=204, responses=PROBLEMS)
def delete_job(service: TheService, job: TheJob) -> Response:
    """Cancel a job that waits or runs; delete one that has ended, with its files."""
    if not service.jobs.cancel(job.id):
        service.jobs.delete(job.id)
    return Response(status_code=204)


@router.get(
    "/jobs/{job}/events",
    responses=PROBLEMS | {200: {"content": {"text/event-stream": {}}}},
    response_class=StreamingResponse,
)
def follow_job(service: TheService, job: TheJob, request: Request) -> StreamingResponse:
    """The job whenever it changes, as server-sent events, until it ends."""
    stopping = request.app.state.stopping
    return StreamingResponse(_events(service, job.id, stopping), media_type="text/event-stream")


async def _events(service: Service, job: str, stopping: Any) -> AsyncIterator[str]:
    with service.listeners.taken() as held:
        last, spoken = "", time.monotonic()
        while not stopping.is_set():
            found = await run_in_threadpool(service.jobs.get, job)
            if found is None:
                return
            text = job_answer(found, service.jobs).model_dump_json()
            if text != last:
                last, spoken = text, time.monotonic()
                yield f"data: {text}\n\n"
            elif time.monotonic() - spoken > _BEAT_SECONDS:
                spoken = time.monotonic()
                yield ": still here\n\n"
            # Too many listeners at a time: those beyond get one answer, and ask again.
            if found.status in _ENDED or not held:
                return
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
