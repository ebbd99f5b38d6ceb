"""Addresses of bundles: list, support pictures, download, calibrate."""

from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from recap.service.answers import Accepted, BundleAnswer
from recap.service.bundles import describe
from recap.service.download import zip_bundle
from recap.service.fits import CalibrateOptions, place_support, read_options
from recap.service.requests import (
    API,
    FILES,
    PROBLEMS,
    UPLOAD_PROBLEMS,
    BundleName,
    ImageNumber,
    TheService,
    attached_zip,
    form_body,
)
from recap.service.service import Service
from recap.service.submission import Wanted, submit
from recap.service.uploads import Form

router = APIRouter(prefix=API, tags=["bundles"])
_NOT_HERE = "There is no such bundle."


@router.get("/bundles", responses=PROBLEMS)
def list_bundles(service: TheService) -> list[BundleAnswer]:
    """Every bundle that files can be scored by."""
    answers = []
    for name, card in service.bundles.cards().items():
        told = describe(name, card, service.bundles.is_made_here(name))
        answers.append(BundleAnswer.model_validate(told))
    return answers


@router.get(
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


@router.get(
    "/bundles/{bundle}/download.zip",
    responses=PROBLEMS | {200: {"content": {"application/zip": {}}}},
    response_class=StreamingResponse,
)
def download_bundle(service: TheService, bundle: BundleName) -> StreamingResponse:
    """The bundle's folder; unpacked it can be used anywhere."""
    found = service.bundles.bundle(bundle)
    if found is None:
        raise HTTPException(404, _NOT_HERE)
    return attached_zip(zip_bundle(found), f"{bundle}.recap.zip")


@router.delete("/bundles/{bundle}", status_code=204, responses=PROBLEMS)
def delete_bundle(service: TheService, bundle: BundleName) -> Response:
    """Delete a bundle that was made here; of one that was calibrated here, the calibration."""
    if not service.bundles.remove(bundle):
        raise HTTPException(404, "No bundle of this name was made here.")
    return Response(status_code=204)


@router.post(
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
        return _understand_calibration(service, form, bundle)

    return Accepted(id=await submit(request, service, understand))


def _understand_calibration(service: Service, form: Form, bundle: str) -> Wanted:
    card = service.bundles.card(bundle)
    if card is None:
        raise HTTPException(404, _NOT_HERE)
    if form.files_of("masks"):
        raise HTTPException(422, "A calibration takes no masks.")
    told: dict[str, Any] = {"calibrate": read_options(form, CalibrateOptions).model_dump()}
    return Wanted("calibrate", bundle, card.reading, place_support(form), told)
