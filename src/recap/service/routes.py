"""Addresses of the data: jobs and how they go, their results, and the bundles that make them."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from recap.service.answers import (
    API,
    FILES,
    PROBLEMS,
    UPLOAD_PROBLEMS,
    Accepted,
    Before,
    BundleAnswer,
    BundleName,
    CaseAnswer,
    ImageNumber,
    JobAnswer,
    Limit,
    TheCase,
    TheJob,
    TheResult,
    TheService,
    attached_zip,
    form_body,
    job_answer,
)
from recap.service.bundles import describe
from recap.service.download import dicom_zip, zip_bundle, zip_result
from recap.service.results import VOLUME, Result
from recap.service.service import Service
from recap.service.submit import Wanted, calibration_wanted, fit_wanted, score_wanted, submit
from recap.service.uploads import Form
from recap.service.work import nearest_normal

jobs = APIRouter(prefix=API, tags=["jobs"])
_LOOK_EVERY_SECONDS, _BEAT_SECONDS = 0.2, 15.0
_ENDED = ("done", "failed", "cancelled")
results = APIRouter(prefix=API, tags=["results"], responses=PROBLEMS)
_PNG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}}}
_ZIP: dict[int | str, dict[str, Any]] = {200: {"content": {"application/zip": {}}}}
_GZIP: dict[int | str, dict[str, Any]] = {200: {"content": {"application/gzip": {}}}}
_RAW: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}
_CASE = "/jobs/{job}/cases/{case:path}"
Place = Annotated[int, Query(ge=0, le=10**7)]
bundles = APIRouter(prefix=API, tags=["bundles"])


@jobs.post(
    "/jobs",
    status_code=202,
    responses=UPLOAD_PROBLEMS,
    openapi_extra=form_body({"file": FILES, "bundle": {"type": "string"}}, ["file"]),
)
async def score_files(request: Request, service: TheService) -> Accepted:
    """Score files: pictures, DICOM, NIfTI, NRRD, slides or zips of them, by one bundle."""
    return Accepted(id=await submit(request, service, score_wanted))


@jobs.post(
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
    return Accepted(id=await submit(request, service, fit_wanted))


@jobs.get("/jobs", responses=PROBLEMS)
def list_jobs(service: TheService, limit: Limit = 50, before: Before = None) -> list[JobAnswer]:
    """The newest jobs; with `before`, those that came before that job."""
    if before is not None and service.jobs.get(before) is None:
        raise HTTPException(404, "before: there is no such job.")
    found = service.jobs.latest(limit, before)
    return [job_answer(job, service.jobs) for job in found]


@jobs.get("/jobs/{job}", responses=PROBLEMS)
def show_job(service: TheService, job: TheJob) -> JobAnswer:
    """One job."""
    return job_answer(job, service.jobs)


@jobs.post("/jobs/{job}/cancel", status_code=204, responses=PROBLEMS)
def cancel_job(service: TheService, job: TheJob) -> Response:
    """Cancel a job that waits or runs; one that has ended stays, with its result."""
    service.jobs.cancel(job.id)
    return Response(status_code=204)


@jobs.delete("/jobs/{job}", status_code=204, responses=PROBLEMS)
def delete_job(service: TheService, job: TheJob) -> Response:
    """Cancel a job that waits or runs; delete one that has ended, with its files."""
    if not service.jobs.cancel(job.id):
        service.jobs.delete(job.id)
    return Response(status_code=204)


@jobs.get(
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


@results.get("/jobs/{job}/cases")
def list_cases(result: TheResult) -> list[CaseAnswer]:
    """Every case with its score, decision and regions."""
    return [CaseAnswer.model_validate(case) for case in result.read()["cases"]]


@results.get(_CASE + "/image/{number}.png", responses=_PNG, response_class=Response)
def show_image(result: TheResult, case: TheCase, number: ImageNumber) -> Response:
    """An image as it was scored."""
    return _png(result.image_png(case["id"], number))


@results.get(_CASE + "/map/{number}.png", responses=_PNG, response_class=Response)
def show_map(result: TheResult, case: TheCase, number: ImageNumber) -> Response:
    """A map in grey, on the detector's fixed scale."""
    return _png(result.map_png(case["id"], number, _scale(case)))


@results.get(_CASE + "/overlay/{number}.png", responses=_PNG, response_class=Response)
def show_overlay(result: TheResult, case: TheCase, number: ImageNumber) -> Response:
    """The map's colours on the image."""
    return _png(result.overlay_png(case["id"], number, _scale(case)))


@results.get(_CASE + "/map/{number}.f32", responses=_RAW, response_class=Response)
def read_map(result: TheResult, case: TheCase, number: ImageNumber) -> Response:
    """A map's values: little-endian float32, rows first; X-Shape has height and width."""
    map = result.map(case["id"], number)
    if map is None:
        raise HTTPException(404, "The case has no such image.")
    shape = ",".join(str(side) for side in map.shape)
    return Response(
        map.astype("<f4").tobytes(),
        media_type="application/octet-stream",
        headers={"X-Shape": shape},
    )


@results.get(_CASE + "/map.nii.gz", responses=_GZIP, response_class=FileResponse)
def download_volume(result: TheResult, case: TheCase) -> FileResponse:
    """A volume's map on its source's own grid."""
    return _volume(result, case["id"])


@results.get(_CASE + "/nearest")
def show_nearest(
    service: TheService,
    job: TheJob,
    result: TheResult,
    case: TheCase,
    x: Place,
    y: Place,
    image: Place = 0,
) -> dict[str, Any]:
    """The normal patch of the support images that is nearest to a place of an image."""
    return nearest_normal(service.jobs, service.bundles, job, case, image, (x, y))


@results.get("/jobs/{job}/result.json")
def read_result(result: TheResult) -> dict[str, Any]:
    """The whole result."""
    return result.read()


@results.get("/jobs/{job}/result.nii.gz", responses=_GZIP, response_class=FileResponse)
def download_only_volume(result: TheResult) -> FileResponse:
    """The map of the job's volume, if it has exactly one."""
    cases = result.read()["cases"]
    volumes = [case["id"] for case in cases if result.file(case["id"], VOLUME).is_file()]
    if len(volumes) != 1:
        raise HTTPException(404, f"The job has {len(volumes)} volumes, not one: ask by case.")
    return _volume(result, volumes[0])


@results.get("/jobs/{job}/result.dcm.zip", responses=_ZIP, response_class=StreamingResponse)
def download_dicom(service: TheService, job: TheJob, result: TheResult) -> StreamingResponse:
    """Maps, regions, report and overlays as DICOM objects of the same patients."""
    return attached_zip(
        dicom_zip(service.jobs, service.bundles, job, result), f"recap-{job.id}.dcm.zip"
    )


@results.get("/jobs/{job}/download.zip", responses=_ZIP, response_class=StreamingResponse)
def download_result(job: TheJob, result: TheResult) -> StreamingResponse:
    """Table, JSON, maps and overlays."""
    return attached_zip(zip_result(result), f"recap-{job.id}.zip")


def _volume(result: Result, case: int) -> FileResponse:
    path = result.file(case, VOLUME)
    if not path.is_file():
        raise HTTPException(404, "The case is no volume.")
    return FileResponse(path, media_type="application/gzip", filename=f"case-{case}.map.nii.gz")


def _png(picture: bytes | None) -> Response:
    if picture is None:
        raise HTTPException(404, "The case has no such image.")
    return Response(picture, media_type="image/png")


def _scale(case: dict[str, Any]) -> tuple[float, float]:
    low, high = case.get("scale") or (0.0, 1.0)
    return low, high


@bundles.get("/bundles", responses=PROBLEMS)
def list_bundles(service: TheService) -> list[BundleAnswer]:
    """Every bundle that files can be scored by."""
    answers = []
    for name, card in service.bundles.cards().items():
        told = describe(name, card, service.bundles.is_made_here(name))
        answers.append(BundleAnswer.model_validate(told))
    return answers


@bundles.get(
    "/bundles/{bundle}/support/{number}.png",
    responses=PROBLEMS | {200: {"content": {"image/png": {}}}},
    response_class=Response,
)
def show_support(service: TheService, bundle: BundleName, number: ImageNumber) -> Response:
    """A small picture of a support image, by its number in the bundle's list."""
    found = service.bundles.bundle(bundle)
    picture = None if found is None else found.thumbnail(number)
    if picture is None:
        raise HTTPException(404, "The bundle keeps no picture of this support image.")
    return Response(picture, media_type="image/png")


@bundles.get(
    "/bundles/{bundle}/download.zip",
    responses=PROBLEMS | {200: {"content": {"application/zip": {}}}},
    response_class=StreamingResponse,
)
def download_bundle(service: TheService, bundle: BundleName) -> StreamingResponse:
    """The bundle's folder; unpacked it can be used anywhere."""
    found = service.bundles.bundle(bundle)
    if found is None:
        raise HTTPException(404, "There is no such bundle.")
    return attached_zip(zip_bundle(found), f"{bundle}.recap.zip")


@bundles.delete("/bundles/{bundle}", status_code=204, responses=PROBLEMS)
def delete_bundle(service: TheService, bundle: BundleName) -> Response:
    """Delete a bundle that was made here; of one that was calibrated here, the calibration."""
    if not service.bundles.remove(bundle):
        raise HTTPException(404, "No bundle of this name was made here.")
    return Response(status_code=204)


@bundles.post(
    "/bundles/{bundle}/calibrate",
    status_code=202,
    responses=UPLOAD_PROBLEMS,
    openapi_extra=form_body(
        {
            "normals": FILES,
            "abnormals": FILES,
            "options": {"type": "string", "description": "JSON: fpr, sensitivity, decide_by"},
        },
        ["normals"],
    ),
)
async def calibrate_bundle(request: Request, service: TheService, bundle: BundleName) -> Accepted:
    """Calibrate a bundle on normal (and abnormal) files that it was not fitted on."""

    def understand(service: Service, form: Form) -> Wanted:
        return calibration_wanted(service, form, bundle)

    return Accepted(id=await submit(request, service, understand))
