"""Why a place of an image looks abnormal: the nearest normal patch, and what each layer adds."""

from dataclasses import asdict
from typing import Any

from fastapi import HTTPException

from recap.service.jobs import Job
from recap.service.numbering import job_cases
from recap.service.results import Result, read_as
from recap.service.service import Service


def nearest_normal(
    service: Service,
    job: Job,
    result: Result,
    case: dict[str, Any],
    image: int,
    x: int,
    y: int,
) -> dict[str, Any]:
    """The normal patch of the support images that is nearest to a pixel (x, y) of an image.

    `index` is the support image's number in the bundle, `layers` has the distance in each layer,
    `parts` what each layer adds to the map's value here.
    """
    from recap.scoring.explain import explain

    if case["status"] != "ok" or case["kind"] == "slide":
        raise HTTPException(404, "Only pictures, slices and frames can be explained.")
    content = result.read()
    card = service.bundles.refuse_other(job.bundle, content["fingerprint"])
    if not 0 <= image < case["images"]:
        raise HTTPException(404, "The case has no such image.")
    detector = service.bundles.detector(job.bundle)
    upload = service.jobs.store.job_folder(job.id) / "upload"
    found = job_cases(job, upload)[case["id"]].open(read_as(content, card))
    told = explain(detector, found.images[image], (x, y))
    nearest = told.nearest
    if nearest is None or nearest.origin is None:
        raise HTTPException(404, told.note or "The bundle remembers no normal images.")
    origin = nearest.origin
    place = origin.xy_px or (None, None)
    return {
        "support": origin.name,
        "index": origin.support,
        "x": place[0],
        "y": place[1],
        "size_hw": origin.size_hw,
        "distance": nearest.distance,
        "layers": [
            {"layer": each.layer, "distance": each.distance}
            for each in told.neighbours
            if each.branch != "det"
        ],
        "parts": [{**asdict(part), "amount": part.amount} for part in told.map_parts],
        "map_value": told.map_value,
        "score": told.score,
        "note": told.note,
    }
