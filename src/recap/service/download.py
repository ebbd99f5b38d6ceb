"""Zips that are made while they are sent: results, also as DICOM, and bundles."""

import csv
import io
import re
import shutil
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import HTTPException

from recap.errors import RecapError
from recap.io import Case
from recap.report.page_table import cell_text
from recap.results.table import columns_of, number_text
from recap.scoring.bundle_folder import Bundle
from recap.service.bundles import Bundles
from recap.service.jobs import Job, Jobs
from recap.service.placing import job_cases
from recap.service.results import MAPS, RESULT, VOLUME, Result, reading_of_result
from recap.types import Decision, DomainCheck, Prediction, Region

Content = bytes | Path | Callable[[], AbstractContextManager[BufferedReader]]
"""Content of a zip under a name: bytes, a file, or what opens one when its turn comes."""
_BLOCK = 2**18
_ONE_AT_A_TIME = threading.Lock()
# Those of `recap score` that hold without its folders, in its order.
_COLUMNS = [
    *("case", "status", "kind", "images", "score", "score_prototype", "score_memory", "p_value"),
    *("decision", "probability", "in_domain", "regions", "rule", "height", "width", "error"),
]


class _Pipe(io.RawIOBase):
    """A file for a zip to be written into, taken away block by block."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, block: Any) -> int:
        self._blocks.append(bytes(block))
        return len(block)

    def take(self) -> bytes:
        taken = b"".join(self._blocks)
        self._blocks.clear()
        return taken


def zip_files(files: Iterable[tuple[str, Content]]) -> Iterator[bytes]:
    """Pack files and bytes under the given names, block by block."""
    pipe = _Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            info = zipfile.ZipInfo(name)  # without a date: the same result is the same bytes
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as member:
                for block in _blocks(content):
                    member.write(block)
                    if taken := pipe.take():
                        yield taken
    yield pipe.take()


def zip_bundle(bundle: Bundle) -> Iterator[bytes]:
    """Pack all files of a bundle."""
    return zip_files([(name, partial(bundle.open, name)) for name in bundle.files()])


def zip_result(result: Result) -> Iterator[bytes]:
    """Pack table, JSON, maps, and an overlay of each case's highest image."""
    return zip_files(_files(result, result.read()))


def _files(result: Result, content: dict[str, Any]) -> Iterator[tuple[str, Content]]:
    yield RESULT, result.folder / RESULT
    yield "scores.csv", scores_csv(content).encode()
    for number, case in enumerate(content["cases"]):
        if case["status"] != "ok":
            continue
        name = f"{number:05d}-{file_name(case['name'])}"
        volume = result.file(number, VOLUME)
        if volume.is_file():
            yield f"maps/{name}.map.nii.gz", volume
        else:
            yield f"maps/{name}.npy", result.file(number, MAPS)
        low, high = case["scale"]
        picture = result.overlay_png(number, case["highest"], (low, high))
        yield f"overlays/{name}.png", picture or b""


def scores_csv(content: dict[str, Any]) -> str:
    """Write one line per case, with the words and numbers of `recap score`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS)
    writer.writeheader()
    for case in content["cases"]:
        known = _measured(case) if case["status"] == "ok" else {}
        given = {"case": cell_text(case["name"]), "status": case["status"], "error": case["error"]}
        writer.writerow({**known, **given})
    return text.getvalue()


def _measured(case: dict[str, Any]) -> dict[str, str]:
    scores = ("score", "score_prototype", "score_memory")
    height, width = case.get("source_size_hw") or case["size_hw"]
    decision, domain = case["decision"], case["domain"]
    decided = columns_of(
        None if decision is None else Decision(**decision),
        None if domain is None else DomainCheck(**domain),
        case["undecided"],
    )
    return {
        **{name: number_text(case[name]) for name in scores},
        **decided,
        "kind": case["kind"],
        "images": str(case.get("tiles") or case["images"]),
        "regions": "" if case["level"] is None else str(len(case["regions"])),
        "height": str(height),
        "width": str(width),
    }


def file_name(name: str) -> str:
    """Turn a client's name for a case into a file name that does no harm anywhere."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[-80:] or "case"


def _blocks(content: Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") if isinstance(content, Path) else content() as file:
        while block := file.read(_BLOCK):
            yield block


def dicom_zip(jobs: Jobs, bundles: Bundles, job: Job, result: Result) -> Iterator[bytes]:
    """Pack a folder for each case that came as DICOM."""
    if find_spec("highdicom") is None:
        raise HTTPException(501, "DICOM results need the extra dicom on the service.")
    content = result.read()
    wanted = [case for case in content["cases"] if case.get("dicom")]
    if not wanted:
        raise HTTPException(404, "No case of this job came as DICOM.")
    bundles.refuse_other(job.bundle, content["fingerprint"])
    reading = reading_of_result(content)
    folder = Path(tempfile.mkdtemp(dir=jobs.store.root / "incoming"))
    written = False
    try:
        with _ONE_AT_A_TIME:
            upload = jobs.store.job_folder(job.id) / "upload"
            cases = job_cases(job, upload)
            for record in wanted:
                case = cases[record["id"]].open(reading)
                _write(case, record, content["fingerprint"], result, folder)
        written = True
    except RecapError as error:
        raise HTTPException(422, str(error).replace(str(jobs.store.root), "")) from error
    finally:
        if not written:  # for whatever reason: nobody else would remove it until the next start
            shutil.rmtree(folder, ignore_errors=True)
    return _then_remove(folder)


def _write(
    case: Case, record: dict[str, Any], fingerprint: str, result: Result, folder: Path
) -> None:
    from recap.report.dicom.results import write_dicom_results

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
    """Read a case's prediction back from the result's files."""
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
    """Restore a region as it was before it became JSON."""
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
    return Region(**values)


def _then_remove(folder: Path) -> Iterator[bytes]:
    """Pack a folder, which is removed after the last block."""

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
