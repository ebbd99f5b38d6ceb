"""Scoring many cases into a folder: a table, raw maps, overlays and a manifest.

Threads read, score and write at the same time. A case that cannot be read becomes a row with its
reason. A row is written as soon as its case is done, and the images of a volume or slide
are kept one by one, so an interrupted run goes on where it stopped.
"""

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from recap.config import ReadingSettings
from recap.data.cases import Found
from recap.errors import RecapError
from recap.scoring.case_steps import Draw, Opened, Run, Scored, open_case, read_case, write_case
from recap.scoring.cases import score_case
from recap.scoring.decided import decided_by
from recap.scoring.detector import Detector
from recap.scoring.pipeline import Behind, ahead
from recap.scoring.prepared import (
    default_workers,
    fitting_batch,
    one_core_each,
    score_one,
    score_together,
)
from recap.scoring.regions import ignore_masks
from recap.scoring.rows import Row, appending, write_rows
from recap.scoring.run_manifest import RunManifest
from recap.scoring.shards import TABLE, WHOLE, Shard, finished_rows

PARTS = "parts"
Progress = Callable[[str, int, int, str], None]


def score_to_folder(
    detector: Detector,
    cases: Sequence[Found],
    out: Path,
    draw: Draw,
    progress: Progress = lambda stage, done, total, name: None,
    reading: ReadingSettings | None = None,
    ignore: Path | None = None,
    incomplete: Callable[[Row], bool] = lambda row: False,
    workers: int | None = None,
    batch: int | None = None,
    shard: Shard = WHOLE,
) -> list[Row]:
    """Score every case that has no result yet; returns all rows, in the order of the cases.

    Progress comes in two stages: "score" counts cases, "images" those of a volume or slide.
    `ignore` is a folder of masks named like the cases: what they mark is in no region. A finished
    case that is `incomplete` (it lacks what `draw` writes besides) is scored again. `workers`
    threads read, `batch` images are scored at a time, and `draw` may run in several threads at
    once. Neither changes a score. A shard scores its own cases alone.
    """
    reading = reading or detector.card.settings.reading
    masks = None if ignore is None else ignore_masks(ignore, [Path(c.name) for c in cases])
    cases = [case for case in cases if shard.holds(case.name)]
    out.mkdir(parents=True, exist_ok=True)
    manifest = RunManifest(out, detector, reading, decided_by(detector, ignore), shard)
    manifest.refuse_other_results()
    finished = finished_rows(out, shard)
    manifest.write("running", [])
    parts = out / shard.file(PARTS)
    run = Run(detector, out, parts, reading, masks, draw, manifest)
    threads, together = workers or default_workers(), fitting_batch(detector, batch)
    table = out / shard.file(TABLE)
    with appending(table, finished.values()) as append, one_core_each(detector):
        scoring = _Scoring(run, progress, append, threads, together)
        scoring.score_all(cases, finished, incomplete)
    progress("score", len(cases), len(cases), "")
    shutil.rmtree(parts, ignore_errors=True)  # what is left there belongs to no case
    rows = [scoring.rows[case.name] for case in cases]
    write_rows(table, rows)
    manifest.write("complete", rows)
    return rows


class _Scoring:
    """All cases on their way: read ahead, scored, written behind.

    Pictures that run side by side are scored by the thread that then writes their results;
    batches of a GPU and the images of a volume or slide are scored from here.
    """

    def __init__(
        self,
        run: Run,
        progress: Progress,
        append: Callable[[Row], None],
        threads: int,
        batch: int,
    ) -> None:
        self._run = run
        self._progress = progress
        self._append = append
        self._threads = threads
        self._batch = batch
        self._lock = threading.Lock()
        self._side_by_side = batch > 1 and not run.detector.on_gpu
        finishing = batch if self._side_by_side else threads
        self._behind = Behind(self._finish, finishing, finishing + 1)
        self.rows: dict[str, Row] = {}

    def score_all(
        self,
        cases: Sequence[Found],
        finished: Mapping[str, Row],
        incomplete: Callable[[Row], bool],
    ) -> None:
        """Score what is neither finished nor broken; afterwards every case has a row."""

        def read(found: Found) -> Opened | Row:
            return read_case(self._run, found, finished.get(found.name), incomplete)

        waiting: list[Opened] = []
        reading = ahead(read, cases, self._threads, self._threads + self._batch)
        with self._behind, closing(reading):
            for index, opened in enumerate(reading):
                self._progress("score", index, len(cases), cases[index].name)
                if isinstance(opened, Row):
                    self._done(opened, opened is not finished.get(opened.case))
                elif opened.prepared is None:
                    self._score_pictures(waiting)
                    waiting = []
                    self._score_alone(opened)
                elif self._side_by_side:
                    self._behind.put(opened)
                else:
                    waiting.append(opened)
                    if len(waiting) == self._batch:
                        self._score_pictures(waiting)
                        waiting = []
            self._score_pictures(waiting)

    def _score_pictures(self, group: Sequence[Opened]) -> None:
        if not group:
            return
        images = [opened.prepared for opened in group if opened.prepared is not None]
        try:
            with self._run.manifest.stage("score"):
                answers = score_together(self._run.detector, images)
        except RecapError as error:
            if len(group) == 1:
                self._done(group[0].failed(error))
                return
            for opened in group:  # the others of a batch have no part in it
                self._score_pictures([opened])
            return
        for opened, answer in zip(group, answers, strict=True):
            self._behind.put(Scored(opened, answer))

    def _score_alone(self, opened: Opened) -> None:
        """Score a case of many images."""
        run, found = self._run, opened.found

        def count(done: int, total: int) -> None:
            self._progress("images", done, total, found.name)

        try:
            opened = open_case(run, opened)
            assert opened.case is not None
            with run.manifest.stage("score"):
                prediction = score_case(
                    run.detector,
                    opened.case,
                    opened.parts,
                    count,
                    reading=run.reading,
                    batch=self._batch,
                    look_ahead=True,
                )
        except RecapError as error:
            self._done(opened.failed(error))
            return
        self._behind.settle()  # so that no more than two volumes are in memory
        self._behind.put(Scored(opened, prediction))

    def _finish(self, case: Opened | Scored) -> None:
        opened = case if isinstance(case, Opened) else case.opened
        try:
            row = write_case(self._run, self._scored(case) if isinstance(case, Opened) else case)
        except RecapError as error:
            row = opened.failed(error)
        self._done(row)

    def _scored(self, picture: Opened) -> Scored:
        assert picture.prepared is not None
        with self._run.manifest.stage("score"):
            return Scored(picture, score_one(self._run.detector, picture.prepared))

    def _done(self, row: Row, is_new: bool = True) -> None:
        with self._lock:
            self.rows[row.case] = row
            if is_new:
                self._append(row)
