"""Why a place of an image looks abnormal: the nearest normal patch."""

from typing import Any

from fastapi import HTTPException

from recap.server.jobs import Job
from recap.server.service import Service


def nearest_normal(
    service: Service, job: Job, case: dict[str, Any], image: int, x: float, y: float
) -> dict[str, Any]:
    """The nearest normal patch to a place (x, y) of an image of a case."""
    raise HTTPException(501, "This version cannot tell the nearest normal patch.")
