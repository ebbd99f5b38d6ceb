"""The work on a job's files: they are scored, fitted on or calibrated on, and explained."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from recap.data.cases import Found
from recap.data.folder import natural_key
from recap.errors import RecapError, TrainingError, is_full
from recap.io import Case
from recap.methods.registry import settings_from_dict
from recap.progress import Progress
from recap.scoring.bundle_folder import Bundle
from recap.scoring.detector import Detector
from recap.scoring.predict import Scored, predict, refusing_too_large
from recap.scoring.regions import case_regions
from recap.scoring.whole import Parts, put_together
from recap.service.bundles import Bundles
from recap.service.jobs import Job, Jobs
from recap.service.placing import (
    case_name,
    in_client_words,
    job_cases,
    split_suffix,
    unread_cases,
)
from recap.service.results import (
    RESULT,
    Result,
    case_folder,
    reading_of_result,
    shown_regions,
    summary_of,
    write_case,
)
from recap.types import Prediction, Region, Sample

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
            record = {"status": "error", "error": text, "code": error.code}
        records.append({"id": number, "name": case_name(found, job.names, number, hide), **record})
    records = _with_unread(job, records)
    if not any(record["status"] == "ok" for record in records):
        raise RecapError(records[0]["error"])
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
    """Name a detector and its way of reading: after a kill another may be served under the name,
    and half of a volume must not be of one and half of the other."""
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
    """Find the regions above the calibrated level; none without a calibration."""
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
    """Put all cases in the order of the upload, under names of which no two are the same."""
    every = list(records)
    for unread in unread_cases(job):
        told = {"name": unread.name, "error": unread.error, "code": unread.code}
        every.append({"id": unread.number, "status": "error", **told})
    every.sort(key=lambda record: record["id"])
    taken: set[str] = set()
    for record in every:
        name, number = record["name"], 2
        while record["name"] in taken:
            record["name"], number = f"{name}-{number}", number + 1
        taken.add(record["name"])
    return every


def run_fit(job: Job, folder: Path, out: Path, device: str, progress: Progress) -> Detector:
    """Fit on a job's files and save the bundle to `out`."""
    from recap.data.support import load_support, thumbnails
    from recap.scoring.fit import fit_support

    settings = settings_from_dict(job.options["settings"])
    support = load_support(_samples(folder / "upload"), settings.reading)
    work = folder / "work"
    resumed = work.exists()
    where: dict[str, Any] = {"work_dir": work, "device": device, "progress": progress}
    try:
        detector = fit_support(support, settings, **where)
    except TrainingError as error:
        if not resumed or is_full(error):  # without room nothing is damaged, and it goes on later
            raise
        shutil.rmtree(work)  # what a power cut left of it cannot be used
        detector = fit_support(support, settings, **where)
    kept = thumbnails(support) if job.options["keep_thumbnails"] else {}
    detector.save(out, thumbnails=kept)
    return detector


def _samples(upload: Path) -> list[Sample]:
    masks = {split_suffix(file.name)[0]: file for file in (upload / "masks").glob("*")}
    normals = sorted((upload / "normals").iterdir(), key=natural_key)
    abnormals = sorted((upload / "abnormals").glob("*"), key=natural_key)
    return [Sample(file, abnormal=False) for file in normals] + [
        Sample(file, abnormal=True, mask=masks.get(split_suffix(file.name)[0]))
        for file in abnormals
    ]


def run_calibration(
    job: Job, detector: Detector, source: Path, folder: Path, out: Path, progress: Progress
) -> Detector:
    """Calibrate a detector on a job's files and save it to `out`; `source` is its bundle."""
    from recap.scoring.calibrate import calibrate

    Bundle(source).files()  # all of them go with it: what may not is told of before the work
    upload = folder / "upload"
    abnormals = upload / "abnormals"
    found = calibrate(
        detector,
        upload / "normals",
        abnormals if abnormals.is_dir() else None,
        progress=progress,
        **job.options["calibrate"],
    )
    found.detector.save(out, keep=source)
    return found.detector


def nearest_normal(
    jobs: Jobs,
    bundles: Bundles,
    job: Job,
    case: dict[str, Any],
    image: int,
    xy_px: tuple[int, int],
) -> dict[str, Any]:
    """Find the normal patch of the support images that is nearest to a pixel of an image.

    `index` is the support image's number in the bundle, `layers` has the distance in each layer,
    `parts` what each layer adds to the map's value here.
    """
    from recap.scoring.explain import explain

    if case["status"] != "ok" or case["kind"] == "slide":
        raise HTTPException(404, "Only pictures, slices and frames can be explained.")
    content = Result(jobs.result_folder(job)).read()
    bundles.refuse_other(job.bundle, content["fingerprint"])
    if not 0 <= image < case["images"]:
        raise HTTPException(404, "The case has no such image.")
    detector = bundles.detector(job.bundle)
    upload = jobs.store.job_folder(job.id) / "upload"
    found = job_cases(job, upload)[case["id"]].open(reading_of_result(content))
    told = explain(detector, found.images[image], xy_px)
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
