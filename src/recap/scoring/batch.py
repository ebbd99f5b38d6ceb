"""Scoring many cases into folders: a table, raw maps, overlays and a manifest for each detector.

Threads read, score and write at the same time. A case is read once and an image encoded once for
all detectors that can share it. A case that cannot be read becomes a row with its reason. A row is
written as soon as its case is done, and the images of a volume or slide are kept one by one, so an
interrupted run goes on where it stopped.
"""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from recap._files import alone
from recap.config import ReadingSettings
from recap.data.cases import Found
from recap.errors import RecapError
from recap.pipeline import Behind, ahead
from recap.progress import Progress, silent
from recap.scoring.case_steps import (
    Opened,
    Run,
    Scored,
    Target,
    open_case,
    parts_of,
    read_case,
    write_case,
)
from recap.scoring.cases import score_case
from recap.scoring.decided import decided_by
from recap.scoring.many import SharedPass, encoding_once
from recap.scoring.prepared import Answer, default_workers, fitting_batch, one_core_each
from recap.scoring.regions import IgnoreMasks, ignore_masks
from recap.scoring.rows import Row, appending, write_rows
from recap.scoring.run_manifest import RunManifest
from recap.scoring.shards import TABLE, WHOLE, Shard, finished_rows
from recap.scoring.stages import Stages
from recap.scoring.too_large import refusing_too_large

PARTS, LOCK = "parts", "lock"


def score_to_folders(
    targets: Sequence[Target],
    cases: Sequence[Found],
    progress: Progress = silent,
    reading: ReadingSettings | None = None,
    ignore: Path | None = None,
    *,
    workers: int | None = None,
    batch: int | None = None,
    shard: Shard = WHOLE,
) -> list[list[Row]]:
    """Score every case with every detector that has no result of it yet; returns all their rows.

    The detectors must all be given files as `reading` says, and have one input size and device.
    Progress comes in two stages: "score" counts cases, "images" those of a volume or slide.
    `ignore` is a folder of masks named like the cases: what they mark is in no region. `workers`
    threads read, `batch` images are scored at a time. Neither changes a score. A shard scores its
    own cases alone.
    """
    masks = None if ignore is None else ignore_masks(ignore, [Path(c.name) for c in cases])
    with ExitStack() as held:
        for target in targets:
            target.out.mkdir(parents=True, exist_ok=True)
            # Of two runs at once, the table of the one that ends last would be all that is left.
            held.enter_context(alone(target.out / f".{shard.file(LOCK)}"))
        return _score_all(targets, cases, progress, reading, masks, workers, batch, shard)


def _score_all(
    targets: Sequence[Target],
    cases: Sequence[Found],
    progress: Progress,
    reading: ReadingSettings | None,
    masks: IgnoreMasks | None,
    workers: int | None,
    batch: int | None,
    shard: Shard,
) -> list[list[Row]]:
    first = targets[0].detector
    reading = reading or first.card.reading
    cases = [case for case in cases if shard.holds(case.name)]
    stages, manifests = Stages(), []
    for target in targets:  # all of them, before anything is written
        decided = decided_by(target.detector, None if masks is None else masks.folder)
        manifest = RunManifest(target.out, target.detector, reading, decided, stages, shard)
        manifest.refuse_other_results()
        manifests.append(manifest)
    together = min(fitting_batch(target.detector, batch) for target in targets)
    with ExitStack() as stack:
        runs = []
        for target, manifest in zip(targets, manifests, strict=True):
            finished = finished_rows(target.out, shard)
            manifest.write("running", [])
            table = stack.enter_context(appending(target.out / shard.file(TABLE), finished))
            parts = target.out / shard.file(PARTS)
            runs.append(Run(target, parts, reading, masks, table, stages))
        stack.enter_context(one_core_each(first))
        _Scoring(runs, progress, workers or default_workers(), together).score_all(cases)
    progress("score", len(cases), len(cases), "")
    for run, manifest in zip(runs, manifests, strict=True):
        shutil.rmtree(run.parts, ignore_errors=True)  # what is left there belongs to no case
        rows = [run.table.rows[case.name] for case in cases]
        write_rows(run.out / shard.file(TABLE), rows)
        if shard == WHOLE:
            run.target.sweep(rows)
        manifest.write("complete", rows)
    return [[run.table.rows[case.name] for case in cases] for run in runs]


class _Scoring:
    """All cases on their way: read ahead, scored, written behind.

    Pictures that run side by side are scored by the thread that then writes their results;
    batches of a GPU and the images of a volume or slide are scored from here.
    """

    def __init__(self, runs: Sequence[Run], progress: Progress, threads: int, batch: int) -> None:
        self._runs = runs
        self._stage = runs[0].stages.stage
        self._progress = progress
        self._threads = threads
        self._batch = batch
        self._side_by_side = batch > 1 and not runs[0].detector.on_gpu
        finishing = batch if self._side_by_side else threads
        self._behind = Behind(self._finish, finishing, finishing + 1)

    def score_all(self, cases: Sequence[Found]) -> None:
        """Score what is neither finished nor broken; afterwards every case has its rows."""
        waiting: list[Opened] = []
        most = self._threads + self._batch
        reading = ahead(partial(read_case, self._runs), cases, self._threads, most)
        with self._behind, closing(reading):
            for index, opened in enumerate(reading):
                self._progress("score", index, len(cases), cases[index].name)
                self._keep_finished(opened)
                if opened.problem is not None:
                    self._fail(opened, opened.problem)
                elif not opened.runs:
                    continue
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

    def _keep_finished(self, opened: Opened) -> None:
        for run in self._runs:
            if run not in opened.runs:
                run.table.keep(opened.found.name, opened.path)

    def _fail(self, opened: Opened, error: RecapError) -> None:
        for run in opened.runs:
            run.table.add(opened.failed(error))

    def _score_pictures(self, group: Sequence[Opened]) -> None:
        """Score pictures as one batch, with every detector that lacks any of them."""
        prepared = [opened.prepared for opened in group if opened.prepared is not None]
        shared = SharedPass([one.square for one in prepared])
        for run in self._runs:
            lacking = [n for n, opened in enumerate(group) if run in opened.runs]
            if not lacking:
                continue
            try:
                with self._stage("score"), refusing_too_large():
                    output = shared.output(run.detector)
            except RecapError as error:
                for opened in (replace(group[n], runs=(run,)) for n in lacking):
                    if len(group) == 1:
                        self._fail(opened, error)
                    else:  # the others of a batch have no part in it
                        self._score_pictures([opened])
                continue
            for n in lacking:
                self._behind.put(Scored(run, group[n], Answer(prepared[n].image, output, n)))

    def _score_alone(self, opened: Opened) -> None:
        """Score a case of many images."""
        try:
            with refusing_too_large():
                opened = open_case(opened)
            if opened.case is not None and opened.case.kind == "image":
                self._behind.settle()  # what is scored and drawn of so large a picture is larger
        except RecapError as error:
            self._fail(opened, error)
            return
        with encoding_once([run.detector for run in opened.runs]):
            for run in opened.runs:
                self._score_volume(run, opened)

    def _score_volume(self, run: Run, opened: Opened) -> None:
        assert opened.case is not None
        parts = parts_of(run, opened)

        def count(stage: str, done: int, total: int, source: str) -> None:
            self._progress(stage, done, total, opened.found.name)

        try:
            with self._stage("score"), refusing_too_large():
                prediction = score_case(
                    run.detector,
                    opened.case,
                    parts,
                    count,
                    reading=run.reading,
                    batch=self._batch,
                    look_ahead=True,
                )
        except RecapError as error:
            run.table.add(opened.failed(error))
            return
        self._behind.settle()  # so that no more than two volumes are in memory
        self._behind.put(Scored(run, opened, prediction, parts))

    def _finish(self, case: Opened | Scored) -> None:
        if isinstance(case, Opened):
            self._score_and_write(case)
            return
        try:
            with refusing_too_large():
                row = write_case(case)
        except RecapError as error:
            row = case.opened.failed(error)
        case.run.table.add(row)

    def _score_and_write(self, picture: Opened) -> None:
        prepared = picture.prepared
        assert prepared is not None
        shared = SharedPass([prepared.square])
        for run in picture.runs:
            try:
                with refusing_too_large():
                    with self._stage("score"):
                        output = shared.output(run.detector)
                    row = write_case(Scored(run, picture, Answer(prepared.image, output, 0)))
            except RecapError as error:
                row = picture.failed(error)
            run.table.add(row)
