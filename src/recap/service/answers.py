"""The shapes of the answers, as the API's description shows them."""

from typing import Any, Literal

from pydantic import BaseModel

from recap.service.jobs import Job, Jobs


class Accepted(BaseModel):
    """A job was taken on."""

    id: str


class Progress(BaseModel):
    """How far a job is; the stage says what is counted."""

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
    """Whether a token is needed, and whether this browser has given it."""

    needs_token: bool
    signed_in: bool


class Problem(BaseModel):
    """Why something was refused."""

    detail: Any
    code: str = ""
    """The kind of error, where recap raised one."""


def job_answer(job: Job, jobs: Jobs) -> JobAnswer:
    """A job as it is told to clients."""
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
    fields["content"] = job.options.get("content", "")  # jobs of earlier versions have none
    fields["names"] = sorted(set(job.names.values()) - {""})[:1000]
    fields["result"] = job.summary if job.status == "done" else None
    return JobAnswer(**{**fields, "progress": progress})
