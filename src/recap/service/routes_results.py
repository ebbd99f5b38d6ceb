"""Addresses of results: cases, pictures, maps, files."""

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi.responses import FileResponse, StreamingResponse

from recap.service.answers import CaseAnswer
from recap.service.dicom import dicom_zip
from recap.service.download import zip_result
from recap.service.explaining import nearest_normal
from recap.service.requests import (
    API,
    PROBLEMS,
    ImageNumber,
    TheCase,
    TheJob,
    TheResult,
    TheService,
    attached_zip,
)
from recap.service.results import VOLUME, Result

router = APIRouter(prefix=API, tags=["results"], responses=PROBLEMS)
_PNG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}}}
_ZIP: dict[int | str, dict[str, Any]] = {200: {"content": {"application/zip": {}}}}
_GZIP: dict[int | str, dict[str, Any]] = {200: {"content": {"application/gzip": {}}}}
_RAW: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}
_CASE = "/jobs/{job}/cases/{case:path}"
Place = Annotated[int, Query(ge=0, le=10**7)]


@router.get("/jobs/{job}/cases")
def list_cases(result: TheResult) -> list[CaseAnswer]:
    """Every case with its score, decision and regions."""
    return [CaseAnswer.model_validate(case) for case in result.read()["cases"]]


@router.get(_CASE + "/image/{number}.png", responses=_PNG, response_class=Response)
def show_image(result: TheResult, case: TheCase, number: ImageNumber) -> Response:
    """An image as it was scored."""
    return _png(result.image_png(case["id"], number))


@router.get(_CASE + "/map/{number}.png", responses=_PNG, response_class=Response)
def show_map(result: TheResult, case: TheCase, number: ImageNumber) -> Response:
    """A map in grey, on the detector's fixed scale."""
    return _png(result.map_png(case["id"], number, _scale(case)))


@router.get(_CASE + "/overlay/{number}.png", responses=_PNG, response_class=Response)
def show_overlay(result: TheResult, case: TheCase, number: ImageNumber) -> Response:
    """The map's colours on the image."""
    return _png(result.overlay_png(case["id"], number, _scale(case)))


@router.get(_CASE + "/map/{number}.f32", responses=_RAW, response_class=Response)
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


@router.get(_CASE + "/map.nii.gz", responses=_GZIP, response_class=FileResponse)
def download_volume(result: TheResult, case: TheCase) -> FileResponse:
    """A volume's map on its source's own grid."""
    return _volume(result, case["id"])


@router.get(_CASE + "/nearest")
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
    return nearest_normal(service, job, result, case, image, x, y)


@router.get("/jobs/{job}/result.json")
def read_result(result: TheResult) -> dict[str, Any]:
    """The whole result."""
    return result.read()


@router.get("/jobs/{job}/result.nii.gz", responses=_GZIP, response_class=FileResponse)
def download_only_volume(result: TheResult) -> FileResponse:
    """The map of the job's volume, if it has exactly one."""
    cases = result.read()["cases"]
    volumes = [case["id"] for case in cases if result.file(case["id"], VOLUME).is_file()]
    if len(volumes) != 1:
        raise HTTPException(404, f"The job has {len(volumes)} volumes, not one: ask by case.")
    return _volume(result, volumes[0])


@router.get("/jobs/{job}/result.dcm.zip", responses=_ZIP, response_class=StreamingResponse)
def download_dicom(service: TheService, job: TheJob, result: TheResult) -> StreamingResponse:
    """Maps, regions, report and overlays as DICOM objects of the same patients."""
    return attached_zip(dicom_zip(service, job, result), f"recap-{job.id}.dcm.zip")


@router.get("/jobs/{job}/download.zip", responses=_ZIP, response_class=StreamingResponse)
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
