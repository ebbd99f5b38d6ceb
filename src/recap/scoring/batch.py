"""Scoring many cases into a folder: a table, raw maps, overlays and a manifest.

A case that cannot be read becomes a row with its reason. A row is written as soon as its case is
done, and the images of a volume or slide are kept one by one, so an interrupted run goes on where
it stopped.
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from recap.atomic import write_atomic
from recap.config import ReadingSettings
from recap.data.cases import Found
from recap.errors import InputError, RecapError
from recap.extras import require
from recap.fetch import sha256_of
from recap.io import Case
from recap.scoring.cases import CasePrediction, score_case
from recap.scoring.decided import decided_by, decision_columns
from recap.scoring.detector import Detector
from recap.scoring.outputs import save_image_table, save_map
from recap.scoring.parts import Parts
from recap.scoring.regions import IgnoreMasks, ignore_masks
from recap.scoring.rows import Row, appending, number_text, read_rows, write_rows

TABLE, MANIFEST, PARTS = "scores.csv", "manifest.json", "parts"
Progress = Callable[[str, int, int, str], None]
Draw = Callable[[Case, CasePrediction, Path], None]
"""Writes an overlay to a path."""


def score_to_folder(
    detector: Detector,
    cases: Sequence[Found],
    out: Path,
    draw: Draw,
    progress: Progress = lambda stage, done, total, name: None,
    reading: ReadingSettings | None = None,
    ignore: Path | None = None,
) -> list[Row]:
    """Score every case that has no result yet; returns all rows, in the order of the cases.

    Progress comes in two stages: "score" counts cases, "images" those of a volume or slide.
    `ignore` is a folder of masks named like the cases: what they mark is in no region.
    """
    started = time.time()
    reading = reading or detector.card.settings.reading
    masks = None if ignore is None else ignore_masks(ignore, [Path(c.name) for c in cases])
    out.mkdir(parents=True, exist_ok=True)
    decided = decided_by(detector, ignore)
    _refuse_other_results(out, detector, reading, decided)
    finished = {row.case: row for row in read_rows(out / TABLE) if row.status == "ok"}
    _write_manifest(out, detector, reading, decided, "running", [], started)
    rows: list[Row] = []
    with appending(out / TABLE, finished.values()) as append:
        for index, found in enumerate(cases):
            progress("score", index, len(cases), found.name)
            digest = _digest(found.files)
            row = finished.get(found.name)
            if row is None or row.sha256 != digest:
                row = _score_found(detector, found, digest, out, draw, reading, progress, masks)
                append(row)
            rows.append(row)
    progress("score", len(cases), len(cases), "")
    shutil.rmtree(out / PARTS, ignore_errors=True)  # what is left there belongs to no case
    write_rows(out / TABLE, rows)
    _write_manifest(out, detector, reading, decided, "complete", rows, started)
    return rows


def _score_found(
    detector: Detector,
    found: Found,
    digest: str,
    out: Path,
    draw: Draw,
    reading: ReadingSettings,
    progress: Progress,
    masks: IgnoreMasks | None,
) -> Row:
    path = found.path
    try:
        case = found.open(reading)
        several = case.kind != "image"
        if case.grid is not None:
            require("nibabel", "volumes")  # told before the work rather than after it
        # Without a digest, what another case left behind could be taken for its own.
        parts = Parts(out / PARTS / digest[:16] if several and digest else None)

        def count(done: int, total: int) -> None:
            if several:
                progress("images", done, total, found.name)

        prediction = score_case(detector, case, parts, count, reading=reading)
        decided = decision_columns(detector, found, case, prediction, reading, out, masks)
        map_file = save_map(out, found.name, case, prediction)
        overlay_file = f"overlays/{found.name}.png"
        (out / overlay_file).parent.mkdir(parents=True, exist_ok=True)
        draw(case, prediction, out / overlay_file)
    except RecapError as error:
        return Row(found.name, path, digest, "error", error=found.in_words(str(error)))
    table = save_image_table(out, found.name, prediction) if several else ""
    parts.remove()
    height, width = case.size_hw or prediction.map.shape[-2:]
    total = prediction.total
    return Row(
        case=found.name,
        path=path,
        sha256=digest,
        status="ok",
        kind=case.kind,
        images=str(len(prediction.images)),
        score=number_text(total.score),
        score_prototype=number_text(total.score_prototype),
        score_memory=number_text(total.score_memory),
        height=str(height),
        width=str(width),
        map=map_file,
        map_step_px=number_text(prediction.source_px_per_px),
        overlay=overlay_file,
        table=table,
        **decided,
    )


def _digest(files: Sequence[Path]) -> str:
    """The sha256 of a case's file; of several, that of their digests in order."""
    if not all(file.is_file() for file in files):  # a pipe would be waited for
        return ""
    try:
        digests = [sha256_of(file) for file in files]
    except OSError:
        return ""
    return digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()


def _refuse_other_results(
    out: Path, detector: Detector, reading: ReadingSettings, decided: dict[str, Any] | None
) -> None:
    """Results of two detectors, or of files read or decided in two ways, never mix."""
    path = out / MANIFEST
    if not path.exists():
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        fingerprint, read_as = before["bundle"]["fingerprint"], before["reading"]
        decided_before = before["decisions"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged. Choose another --out.") from error
    if fingerprint != detector.card.fingerprint:
        raise InputError(f"{out} holds the results of another detector. Choose another --out.")
    if read_as != reading.model_dump(mode="json"):
        raise InputError(
            f"{out} holds results of files that were read with other settings ({read_as}). "
            "Choose another --out."
        )
    if decided_before != decided:
        raise InputError(
            f"{out} holds results that were decided by another calibration or with other ignore "
            "masks. Choose another --out."
        )


def _write_manifest(
    out: Path,
    detector: Detector,
    reading: ReadingSettings,
    decided: dict[str, Any] | None,
    status: str,
    rows: Sequence[Row],
    started: float,
) -> None:
    card = detector.card
    failed = [row for row in rows if row.status != "ok"]
    manifest: dict[str, Any] = {
        "status": status,
        "cases": {"ok": len(rows) - len(failed), "error": len(failed)},
        "errors": {row.case: row.error for row in failed},
        "seconds": round(time.time() - started, 3),
        "started_unix": round(started, 3),
        "bundle": card.model_dump(mode="json", exclude={"support", "losses", "calibration"}),
        "reading": reading.model_dump(mode="json"),
        "decisions": decided,
        "maps": {
            "npy": "float32; pictures and frames in source pixels, slides as docs/files.md says",
            "nii.gz": "float32, on the source volume's own grid",
            "drawn_from_to": detector.map_scale,
        },
    }
    write_atomic(out / MANIFEST, json.dumps(manifest, indent=2) + "\n")
