"""Scoring many files into a folder: a table, raw maps, overlays and a manifest.

A file that cannot be read becomes a row with its reason. A row is written as soon as its image is
done, so an interrupted run goes on where it stopped.
"""

import csv
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from recap.data.folder import list_images
from recap.errors import InputError, RecapError
from recap.fetch import sha256_of
from recap.io import read_image
from recap.scoring.detector import Detector
from recap.types import Image, Prediction

TABLE, MANIFEST = "scores.csv", "manifest.json"
Draw = Callable[[Image, Prediction, Path], None]
"""Writes an overlay to a path."""


@dataclass(frozen=True)
class Case:
    """One file to score, under a name that is unique within the run."""

    name: str
    path: Path


@dataclass(frozen=True)
class Row:
    """One line of scores.csv."""

    case: str
    path: str
    sha256: str
    status: str
    score: str = ""
    score_prototype: str = ""
    score_memory: str = ""
    height: str = ""
    width: str = ""
    map: str = ""
    overlay: str = ""
    error: str = ""


COLUMNS = [field.name for field in fields(Row)]


def find_cases(paths: Sequence[Path]) -> list[Case]:
    """All images under files and folders; names keep the folder structure."""
    cases: list[Case] = []
    for number, path in enumerate(paths):
        for file in list_images(path):
            inside = file.relative_to(path) if path.is_dir() else Path(file.name)
            cases.append(Case(inside.as_posix(), file))
            if len(paths) > 1:  # two folders may hold the same names
                parent = path.name if path.is_dir() else path.parent.name
                cases[-1] = Case(f"{number + 1}-{parent or 'root'}/{inside.as_posix()}", file)
    return cases


def score_to_folder(
    detector: Detector,
    cases: Sequence[Case],
    out: Path,
    draw: Draw,
    progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> list[Row]:
    """Score every case that has no result yet; returns all rows, in the order of the cases."""
    started = time.time()
    out.mkdir(parents=True, exist_ok=True)
    _refuse_other_detector(out, detector)
    finished = {row.case: row for row in _read_rows(out / TABLE) if row.status == "ok"}
    _write_manifest(out, detector, "running", [], started)
    rows: list[Row] = []
    with _appending(out / TABLE, finished.values()) as append:
        for index, case in enumerate(cases):
            progress(index, len(cases), case.name)
            digest = _digest(case.path)
            row = finished.get(case.name)
            if row is None or row.sha256 != digest:
                row = _score_case(detector, case, digest, out, draw)
                append(row)
            rows.append(row)
    progress(len(cases), len(cases), "")
    _write_table(out / TABLE, rows)
    _write_manifest(out, detector, "complete", rows, started)
    return rows


def _score_case(detector: Detector, case: Case, digest: str, out: Path, draw: Draw) -> Row:
    map_file, overlay_file = (
        Path("maps") / f"{case.name}.npy",
        Path("overlays") / f"{case.name}.png",
    )
    try:
        image = read_image(case.path)
        prediction = detector.score(image)
    except RecapError as error:
        return Row(case.name, str(case.path), digest, "error", error=str(error))
    for file in (map_file, overlay_file):
        (out / file).parent.mkdir(parents=True, exist_ok=True)
    _save_map(out / map_file, prediction)
    draw(image, prediction, out / overlay_file)
    return Row(
        case=case.name,
        path=str(case.path),
        sha256=digest,
        status="ok",
        score=_number(prediction.score),
        score_prototype=_number(prediction.score_prototype),
        score_memory=_number(prediction.score_memory),
        height=str(image.size_hw[0]),
        width=str(image.size_hw[1]),
        map=map_file.as_posix(),
        overlay=overlay_file.as_posix(),
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.8g}"


def _digest(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError:
        return ""


def _save_map(path: Path, prediction: Prediction) -> None:
    partial = path.with_suffix(".tmp.npy")
    np.save(partial, prediction.map, allow_pickle=False)
    partial.replace(path)


def _read_rows(path: Path) -> list[Row]:
    """Rows of an earlier run; a line cut short by a kill is left out."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        lines = csv.DictReader(file)
        if lines.fieldnames != COLUMNS:
            raise InputError(f"{path} was not written by this version. Choose another --out.")
        return [Row(**line) for line in lines if None not in line.values() and None not in line]


@contextmanager
def _appending(path: Path, rows: Iterable[Row]) -> Iterator[Callable[[Row], None]]:
    _write_table(path, rows)
    with path.open("a", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.DictWriter(file, COLUMNS)

        def append(row: Row) -> None:
            writer.writerow(asdict(row))
            file.flush()

        yield append


def _write_table(path: Path, rows: Iterable[Row]) -> None:
    partial = path.with_suffix(".tmp")
    with partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    partial.replace(path)


def _refuse_other_detector(out: Path, detector: Detector) -> None:
    """Results of two detectors never mix in one table."""
    path = out / MANIFEST
    if not path.exists():
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))["bundle"]["fingerprint"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged. Choose another --out.") from error
    if before != detector.card.fingerprint:
        raise InputError(f"{out} holds the results of another detector. Choose another --out.")


def _write_manifest(
    out: Path, detector: Detector, status: str, rows: Sequence[Row], started: float
) -> None:
    card = detector.card
    failed = [row for row in rows if row.status != "ok"]
    manifest: dict[str, Any] = {
        "status": status,
        "images": {"ok": len(rows) - len(failed), "error": len(failed)},
        "errors": {row.case: row.error for row in failed},
        "seconds": round(time.time() - started, 3),
        "started_unix": round(started, 3),
        "bundle": card.model_dump(mode="json", exclude={"support", "losses"}),
        "maps": {"format": "npy, float32, source pixels", "drawn_from_to": detector.map_scale},
    }
    partial = out / f"{MANIFEST}.tmp"
    partial.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    partial.replace(out / MANIFEST)
