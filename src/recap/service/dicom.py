"""The results of a job as DICOM objects, made when they are asked for."""

import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import HTTPException

from recap.errors import RecapError
from recap.io import Case
from recap.service.download import zip_files
from recap.service.jobs import Job
from recap.service.numbering import job_cases
from recap.service.results import MAPS, Result, read_as
from recap.service.service import Service
from recap.types import Decision, DomainCheck, Prediction, Region

_ONE_AT_A_TIME = threading.Lock()


def dicom_zip(service: Service, job: Job, result: Result) -> Iterator[bytes]:
    """A zip with a folder for each case that came as DICOM."""
    if find_spec("highdicom") is None:
        raise HTTPException(501, "DICOM results need the extra dicom on the service.")
    content = result.read()
    wanted = [case for case in content["cases"] if case.get("dicom")]
    if not wanted:
        raise HTTPException(404, "No case of this job came as DICOM.")
    card = service.bundles.refuse_other(job.bundle, content["fingerprint"])
    reading = read_as(content, card)
    folder = Path(tempfile.mkdtemp(dir=service.jobs.store.root / "incoming"))
    written = False
    try:
        with _ONE_AT_A_TIME:
            upload = service.jobs.store.job_folder(job.id) / "upload"
            cases = job_cases(job, upload)
            for record in wanted:
                case = cases[record["id"]].open(reading)
                _write(case, record, content["fingerprint"], result, folder)
        written = True
    except RecapError as error:
        raise HTTPException(422, str(error).replace(str(service.jobs.store.root), "")) from error
    finally:
        if not written:  # for whatever reason: nobody else would remove it until the next start
            shutil.rmtree(folder, ignore_errors=True)
    return _then_remove(folder)


def _write(
    case: Case, record: dict[str, Any], fingerprint: str, result: Result, folder: Path
) -> None:
    from recap.report.dicom_results import write_dicom_results

    target = folder / f"case-{record['id']:05d}"
    target.mkdir()
    decision = record["decision"]
    write_dicom_results(
        case,
        stored_prediction(record, result),
        target,
        regions=[as_region(region) for region in record["regions"]],
        decision=None if decision is None else Decision(**decision),
        level=record["level"],
        scale=tuple(record["scale"]),
        detector=fingerprint,
    )


def stored_prediction(record: dict[str, Any], result: Result) -> Prediction:
    """What the detector said about a case, from the result's files."""
    maps = np.load(result.file(record["id"], MAPS), mmap_mode="r", allow_pickle=False)
    map = np.array(maps[0] if record["kind"] == "image" else maps)
    scores = () if record["kind"] == "image" else record["image_scores"]
    return Prediction(
        score=record["score"],
        map=map,
        score_prototype=record["score_prototype"],
        score_memory=record["score_memory"],
        domain=None if record["domain"] is None else DomainCheck(**record["domain"]),
        images=tuple(Prediction(score=score, map=map[:0]) for score in scores),
    )


def as_region(stored: dict[str, Any]) -> Region:
    """A region as it was before it became JSON."""
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
    return Region(**values)


def _then_remove(folder: Path) -> Iterator[bytes]:
    """A zip of a folder, which is removed after the last block."""

    def sent() -> Iterator[bytes]:
        try:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            names = [path.relative_to(folder).as_posix() for path in files]
            yield from zip_files(zip(names, files, strict=True))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    blocks = sent()
    # A client may hang up before the first block: what was never started runs no `finally`.
    weakref.finalize(blocks, shutil.rmtree, folder, ignore_errors=True)
    return blocks
