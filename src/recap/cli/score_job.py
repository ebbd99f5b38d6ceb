"""One detector's part of `recap score`: where its results go, and what is written beside them."""

import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from recap.cli.options import check_window, reading_from
from recap.config import ReadingSettings
from recap.data.cases import Found
from recap.errors import InputError, RecapError, require
from recap.io import Case
from recap.progress import Progress
from recap.report.old_dicom import clear_case, clear_unnamed
from recap.report.overlay import case_overlay, save_png
from recap.report.page import PAGE, write_score_page
from recap.report.previews import write_previews
from recap.report.score_table import PARQUET, write_parquet
from recap.scoring.batch import score_to_folders
from recap.scoring.bundle_folder import Bundle
from recap.scoring.case_steps import Target
from recap.scoring.cases import CasePrediction
from recap.scoring.decided import decided_by
from recap.scoring.detector import Detector
from recap.scoring.rows import Row
from recap.scoring.run_manifest import RunManifest, add_to_manifest
from recap.scoring.shards import TABLE, WHOLE, Shard
from recap.scoring.stages import Stages

if TYPE_CHECKING:
    from recap.report.score_dicom import DicomResults


@dataclass(frozen=True)
class Wanted:
    """What to write besides the table, the maps and the overlays, how to read, and how fast."""

    report: bool = False
    parquet: bool = False
    dicom: bool = False
    ignore: Path | None = None
    window: str | None = None
    axis: str | None = None
    workers: int | None = None
    batch: int | None = None

    def check(self, shard: Shard = WHOLE) -> None:
        """Tell before the first file what would fail after the last."""
        if shard != WHOLE and (self.report or self.parquet):
            raise InputError(
                f"--shard {shard}: --report and --parquet are made from all shards. Give them "
                "without --shard when all shards are done."
            )
        if self.parquet:
            require("pyarrow", "tables")
        if self.dicom:
            require("highdicom", "dicom")
        check_window(self.window)

    def reading(self, known: ReadingSettings) -> ReadingSettings:
        """How files are read: as the detector has it, but for what was asked for."""
        return reading_from(known, self.window, self.axis)


@dataclass
class Outcome:
    """What came of one detector's run."""

    rows: list[Row]
    out: Path
    table: Path
    page: Path | None = None
    dicom: int | None = None
    """How many cases have DICOM results; None if those were not asked for."""
    failed: bool = False
    renewed: list[str] = field(default_factory=list)
    """Files of earlier runs that nobody asked for now, made anew of these rows."""
    warnings: list[str] = field(default_factory=list)


class Job:
    """One detector's part of an order: where its results go, and what else is written."""

    def __init__(
        self, detector: Detector, bundle: Path, out: Path, cases: Sequence[Found], wanted: Wanted
    ) -> None:
        self.detector, self.bundle, self.out = detector, bundle, out
        self.cases, self.wanted = cases, wanted
        self.reading = wanted.reading(detector.card.reading)
        self._one_at_a_time = threading.Lock()
        self._dicom = self._dicom_results() if wanted.dicom else None

    def refuse_other_results(self, shard: Shard) -> None:
        """Refuse a folder with results that those of this detector must not be mixed with."""
        if self.out.is_dir():
            decided = decided_by(self.detector, self.wanted.ignore)
            manifest = RunManifest(self.out, self.detector, self.reading, decided, Stages(), shard)
            manifest.refuse_other_results()

    def target(self) -> Target:
        """What scoring needs to know of it."""
        target = Target(
            self.detector,
            self.out,
            self._draw,
            forget=partial(clear_case, self.out),
            sweep=partial(clear_unnamed, self.out),
        )
        return target if self._dicom is None else replace(target, incomplete=self._dicom.missing)

    def _dicom_results(self) -> "DicomResults":
        from recap.report.score_dicom import DicomResults

        return DicomResults(self.detector, self.cases, self.out, self.wanted.ignore)

    def _draw(self, case: Case, prediction: CasePrediction, path: Path) -> dict[str, str]:
        save_png(case_overlay(case, prediction, self.detector.map_scale), path)
        if self._dicom is None:
            return {}
        name = path.relative_to(self.out / "overlays").as_posix().removesuffix(".png")
        with self._one_at_a_time:  # it silences a log that all threads share
            return self._dicom.write(name, case, prediction)

    def outcome(self, rows: list[Row], shard: Shard, progress: Progress) -> Outcome:
        """Write what is made of all rows, and say what came of it."""
        out, wanted = self.out, self.wanted
        failed = any(row.status != "ok" for row in rows)
        outcome = Outcome(rows, out, out / shard.file(TABLE), failed=failed)
        if self._dicom is not None:
            outcome.dicom = sum(bool(row.dicom) for row in rows)
            outcome.failed |= bool(self._dicom.failed)
            outcome.warnings += self._dicom.failed.values()
            told = {"cases": outcome.dicom, "errors": self._dicom.failed}
            add_to_manifest(out, {}, shard=shard, dicom=told)
        # Those of an earlier run would contradict the table beside them.
        there = [name for name in (PARQUET, PAGE) if shard == WHOLE and (out / name).exists()]
        if wanted.parquet or PARQUET in there:
            _write_parquet(outcome, wanted.parquet)
        if wanted.report:
            _write_page(self.detector, self.bundle, self.cases, outcome, self.reading, progress)
        elif PAGE in there:
            write_score_page(out)
            outcome.renewed.append(PAGE)
        return outcome


def seeing_alike(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs in groups whose detectors see the same square of an image, so that it is read once."""
    groups: dict[Hashable, list[Job]] = {}
    for job in jobs:
        encoder = job.detector.model.encoder
        key = (job.reading.model_dump_json(), encoder.input_px, str(job.detector.model.device))
        groups.setdefault(key, []).append(job)
    return list(groups.values())


def score_jobs(
    jobs: Sequence[Job], progress: Progress, shard: Shard = WHOLE
) -> dict[Path, list[Row]]:
    """Score all cases, or those of a shard, with detectors that see alike; rows by their folder."""
    first = jobs[0]
    rows = score_to_folders(
        [job.target() for job in jobs],
        first.cases,
        progress,
        first.reading,
        first.wanted.ignore,
        workers=first.wanted.workers,
        batch=first.wanted.batch,
        shard=shard,
    )
    return {job.out: found for job, found in zip(jobs, rows, strict=True)}


def _write_parquet(outcome: Outcome, wanted: bool) -> None:
    path = outcome.out / PARQUET
    try:
        require("pyarrow", "tables")
    except RecapError as error:  # one that is wanted was refused before the work
        path.unlink()
        outcome.warnings.append(f"{path} was of an earlier run and is removed. {error}")
        return
    write_parquet(outcome.rows, path)
    add_to_manifest(outcome.out, {}, [PARQUET])
    if not wanted:
        outcome.renewed.append(PARQUET)


def _write_page(
    detector: Detector,
    bundle: Path,
    cases: Sequence[Found],
    outcome: Outcome,
    reading: ReadingSettings,
    progress: Progress,
) -> None:
    started = time.perf_counter()
    out = outcome.out
    pictures = Bundle(bundle)
    failed = write_previews(detector, cases, outcome.rows, out, reading, pictures, progress)
    outcome.warnings += [f"no preview: {reason}" for reason in failed.values()]
    add_to_manifest(out, {"previews": time.perf_counter() - started})
    outcome.page = write_score_page(out)
