"""Scoring the cases of a job into a result."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recap.data.cases import Found
from recap.errors import RecapError, is_full
from recap.io import Case
from recap.scoring.detector import Detector
from recap.scoring.predict import Scored, predict, refusing_too_large
from recap.scoring.regions import case_regions
from recap.scoring.whole import Parts, put_together
from recap.service.jobs import Job
from recap.service.numbering import job_cases, unread_cases
from recap.service.placing import case_name, in_client_words
from recap.service.results import RESULT, case_folder, shown_regions, summary_of, write_case
from recap.types import Prediction, Region

Count = Callable[[int], None]
"""Told how many images of the job are done."""


def score_job(
    job: Job,
    detector: Detector,
    folder: Path,
    out: Path,
    count: Count,
    ready: Sequence[Prediction] = (),
) -> dict[str, Any]:
    """Score every case of a job; a case that cannot be read becomes an entry with the reason.

    `folder` is the job's own, `out` a new one for the result. `ready` holds the results of images
    that were scored together with those of other jobs.
    """
    records: list[dict[str, Any]] = []
    hide = bool(job.options.get("deidentify"))
    cases, done = job_cases(job, folder / "upload"), 0
    # Many images take long, so what is done of them outlives a kill.
    work = folder / "work" / _worked_by(detector)

    def note(stage: str, within: int, total: int, name: str) -> None:
        count(done + within)

    scored: Iterable[Scored[Found]]
    if ready:
        scored = (_of_ready(detector, found, ready) for found in cases.values())
    else:
        numbers = {id(found): number for number, found in cases.items()}
        scored = predict(
            detector,
            cases.values(),
            parts=lambda found: Parts(work / f"{numbers[id(found)]:05d}"),
            progress=note,
        )
    for (number, found), one in zip(cases.items(), scored, strict=True):
        try:
            case, prediction = one.or_raise()
            with refusing_too_large():
                record = _record(detector, case, prediction, case_folder(out, number))
            done += len(case.images)
            count(done)
        except RecapError as error:
            if is_full(error):  # it says nothing of the case
                raise
            text = in_client_words(str(error), folder / "upload", job.names, hide)
            record = {"status": "error", "error": text}
        records.append({"id": number, "name": case_name(found, job.names, number, hide), **record})
    records = _with_unread(job, records)
    _refuse_nothing(records)
    return _write(job, detector, out, records)


def _of_ready(detector: Detector, found: Found, ready: Sequence[Prediction]) -> Scored[Found]:
    """Put a case together whose images were scored already."""
    try:
        case = found.open(detector.card.reading)
        whole = put_together(case, ready, detector.card.reading.volume_top_k)
    except RecapError as error:
        return Scored(found, None, error)
    return Scored(found, case, detector.decided(whole, case.kind))


def _worked_by(detector: Detector) -> str:
    """After a kill another detector may be served under the name, or one calibrated on images that
    were read otherwise; half of a volume must not be of one and half of the other."""
    reading = detector.card.reading.model_dump_json()
    return f"{detector.card.fingerprint}-{hashlib.sha256(reading.encode()).hexdigest()[:16]}"


def _record(detector: Detector, case: Case, prediction: Prediction, folder: Path) -> dict[str, Any]:
    """Write the arrays of a case, and say what result.json has of it."""
    shown = write_case(folder, case, prediction)
    regions = regions_of(detector, case, prediction)
    decision = prediction.decision
    calibration = detector.card.calibration
    return {
        "status": "ok",
        "error": "",
        "kind": case.kind,
        **shown,
        "score": prediction.score,
        "score_prototype": prediction.score_prototype,
        "score_memory": prediction.score_memory,
        "image_scores": [image.score for image in prediction.by_image],
        "highest": 0 if case.kind == "slide" else prediction.highest,
        "decision": None if decision is None else asdict(decision),
        "undecided": detector.undecided(case.kind) if decision is None else "",
        "domain": None if prediction.domain is None else asdict(prediction.domain),
        "regions": shown_regions(regions, shown),
        "level": None if calibration is None else calibration.map_level,
        "calibration_digest": "" if calibration is None else calibration.digest,
        "scale": list(detector.map_scale),
        "dicom": bool(case.dicom_frames),
    }


def regions_of(detector: Detector, case: Case, prediction: Prediction) -> list[Region]:
    """The regions above the calibrated level; none without a calibration."""
    calibration = detector.card.calibration
    if calibration is None:
        return []
    level, step = calibration.map_level, prediction.source_px_per_px
    return case_regions(case, prediction.map, level, px_per_value=step)


def _write(
    job: Job, detector: Detector, out: Path, records: list[dict[str, Any]]
) -> dict[str, Any]:
    from recap import __version__

    content = {
        "job": job.id,
        "bundle": job.bundle,
        "fingerprint": detector.card.fingerprint,
        "encoder": {
            "name": Path(detector.card.encoder.name).name,  # it may be a folder of this machine
            "sha256": detector.card.encoder.sha256,
        },
        "version": __version__,
        # A detector that is calibrated anew may read files otherwise than these maps were made.
        "reading": detector.card.reading.model_dump(mode="json"),
        "scale": list(detector.map_scale),
        "cases": records,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / RESULT).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return summary_of(records)


def _with_unread(job: Job, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All cases in the order of the upload; asked for by name, so no two have the same."""
    every = list(records)
    for unread in unread_cases(job):
        number = len(every) if unread.number is None else unread.number
        told = {"name": unread.name, "status": "error", "error": unread.error}
        every.append({"id": number, **told})
    every.sort(key=lambda record: record["id"])
    taken: set[str] = set()
    for record in every:
        record["name"] = _unique(record["name"], taken)
        taken.add(record["name"])
    return every


def _unique(name: str, taken: set[str]) -> str:
    number, unique = 2, name
    while unique in taken:
        unique, number = f"{name}-{number}", number + 1
    return unique


def _refuse_nothing(records: list[dict[str, Any]]) -> None:
    if not any(record["status"] == "ok" for record in records):
        raise RecapError(records[0]["error"])
