"""Scoring cases into a folder: a table, raw maps, what a list of writers adds, and a manifest.

    OUT/scores.csv          a row for each case, there as soon as it is scored
    OUT/maps/, images/      the map of a case, and the scores of its slices, frames or tiles
    OUT/regions/            regions of the map above the calibrated level
    OUT/overlays/, dicom/   what writers add
    OUT/manifest.json       what was run on what, how long it took, and what failed

Threads read, score and write at the same time. A case that cannot be read becomes a row with its
reason. The images of a volume or slide are kept one by one, so an interrupted run goes on where it
stopped.
"""

import csv
import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import numpy as np

from recap._download import sha256_of
from recap._files import alone, replacing, write_atomic
from recap.config import ReadingSettings
from recap.data.cases import ALONE_BYTES, SCORING_BYTES, Found
from recap.errors import InputError, RecapError
from recap.io import Case
from recap.pipeline import Behind
from recap.progress import Progress, silent
from recap.results.manifest import Manifest
from recap.results.table import (
    TABLE,
    WHOLE,
    OpenTable,
    Row,
    Shard,
    appending,
    columns_of,
    finished_rows,
    number_text,
    write_rows,
)
from recap.scoring.detector import Detector
from recap.scoring.predict import (
    default_workers,
    fitting_batch,
    one_core_each,
    predict,
    refusing_too_large,
)
from recap.scoring.regions import IgnoreMasks, case_regions, ignore_masks, regions_table
from recap.scoring.whole import Parts
from recap.types import Prediction

PARTS, LOCK = "parts", "lock"
IMAGE_COLUMNS = ("number", "row_px", "column_px", "score", "score_prototype", "score_memory")


class Writer(Protocol):
    """Something that is written of every scored case, beside its row, map and tables.

    Cases are written in several threads at once.
    """

    def write(self, name: str, case: Case, said: Prediction) -> Mapping[str, str]:
        """Write it; returns the columns of the case's row that it fills."""

    def is_complete(self, row: Row) -> bool:
        """Tell whether what it writes is there of a finished case, which else is scored again."""

    def remove(self, name: str) -> None:
        """Remove what it wrote of a case that is about to be scored."""

    def sweep(self, rows: Sequence[Row]) -> None:
        """Remove what it wrote of cases that are no longer among all rows."""


def score_cases(
    detector: Detector,
    cases: Sequence[Found],
    out: Path,
    writers: Sequence[Writer] = (),
    *,
    reading: ReadingSettings | None = None,
    ignore: Path | None = None,
    workers: int | None = None,
    batch: int | None = None,
    shard: Shard = WHOLE,
    progress: Progress = silent,
) -> list[Row]:
    """Score every case that has no result in a folder yet; returns the rows of all of them.

    Args:
        detector: what scores.
        cases: what is scored, each under a name of its own; a shard takes some of them.
        out: the folder, which other results of the same detector may be in.
        writers: what else is written of each case.
        reading: how files are read, if not as the detector has it.
        ignore: a folder of masks named like the cases: what they mark is in no region.
        workers: threads that read. Neither they nor `batch` change a score.
        batch: images scored at a time, as far as that is of use.
        shard: which of the cases.
        progress: told of two stages: `score` counts cases, `images` those of a volume or slide.
    """
    cases = [case for case in cases if shard.holds(case.name)]
    at_a_time, threads = fitting_batch(detector, batch), workers or default_workers()
    with Results.open(detector, out, writers, cases, reading, ignore, shard) as results:
        numbers = {case.name: number for number, case in enumerate(cases)}
        with one_core_each(detector), results.writing(threads):
            scored = predict(
                detector,
                cases,
                reading=results.reading,
                wanted=results.lacks,
                parts=results.parts_of,
                workers=threads,
                batch=at_a_time,
                progress=progress,
                stage=results.stage,
            )
            for found, case, said in scored:
                results.add(found, case, said)
                progress("score", numbers[found.name], len(cases), found.name)
        progress("score", len(cases), len(cases), "")
        return results.finish()


@dataclass(frozen=True)
class _Fingerprint:
    """Digests of files, which tell whether a finished case is the one that lies there now."""

    files: str
    ignored: str


class Results:
    """A folder of results while a run adds to it."""

    def __init__(
        self,
        detector: Detector,
        out: Path,
        writers: Sequence[Writer],
        cases: Sequence[Found],
        masks: IgnoreMasks | None,
        manifest: Manifest,
        table: OpenTable,
    ) -> None:
        self.out, self.reading = out, manifest.reading
        self.stage = manifest.stages.stage
        self._detector, self._writers, self._cases = detector, writers, cases
        self._masks, self._manifest, self._table = masks, manifest, table
        self._shard = manifest.shard
        self._seen: dict[str, _Fingerprint] = {}
        self._behind: Behind[tuple[Found, Case, Prediction]]

    @classmethod
    @contextmanager
    def open(
        cls,
        detector: Detector,
        out: Path,
        writers: Sequence[Writer],
        cases: Sequence[Found],
        reading: ReadingSettings | None,
        ignore: Path | None,
        shard: Shard,
    ) -> "Iterator[Results]":
        """Open a folder for one run, and refuse results that must not be mixed with its own."""
        masks = None if ignore is None else ignore_masks(ignore, [Path(c.name) for c in cases])
        manifest = Manifest(out, detector, reading or detector.card.reading, ignore, shard)
        out.mkdir(parents=True, exist_ok=True)
        # Of two runs at once, the table of the one that ends last would be all that is left.
        with alone(out / f".{shard.file(LOCK)}"):
            manifest.refuse_other_results()
            finished = finished_rows(out, shard)
            manifest.write("running", [])
            with appending(out / shard.file(TABLE), finished) as table:
                yield cls(detector, out, writers, cases, masks, manifest, table)

    @contextmanager
    def writing(self, threads: int) -> Iterator[None]:
        """Write what is added in threads; all of it is written at the end."""
        with Behind(self._write, threads, threads + 1) as self._behind:
            yield

    def lacks(self, found: Found) -> bool:
        """Tell whether a case is to be scored; what is finished keeps its row. From any thread.

        Finished is what has a row, lies there as it did when it was scored, and has all files of
        its results: somebody may have deleted maps to save space and now wants them back.
        """
        with self.stage("hash"):
            mask = None if self._masks is None else self._masks.files.get(Path(found.name))
            ignored = "" if mask is None else digest_of([mask]) or "unreadable"
            seen = self._seen[found.name] = _Fingerprint(digest_of(found.files), ignored)
        row = self._table.finished.get(found.name)
        if (
            row is not None
            and (row.sha256, row.ignore_sha256) == (seen.files, seen.ignored)
            and all((self.out / file).is_file() for file in row.files)
            and all(writer.is_complete(row) for writer in self._writers)
        ):
            self._table.keep(found.name, _place(found))
            return False
        for writer in self._writers:
            writer.remove(found.name)
        return True

    def parts_of(self, found: Found) -> Parts:
        """Find the place where the images of a case are kept until it is whole."""
        digest = self._seen[found.name].files
        # Without a digest, what another case left behind could be taken for its own.
        name = f"{digest} {found.name}".encode(errors="surrogateescape")
        folder = self.out / self._shard.file(PARTS) / sha256(name).hexdigest()[:16]
        return Parts(folder if digest else None)

    def add(self, found: Found, case: Case | None, said: Prediction | RecapError) -> None:
        """Add a case: all that there is to write of it, or a row that says why there is nothing."""
        if isinstance(said, RecapError):
            self._table.add(self._failed(found, said))
            return
        assert case is not None
        if case.kind != "image" or said.map.size * SCORING_BYTES > ALONE_BYTES:
            self._behind.settle()  # so that no more than two so large are in memory
        self._behind.put((found, case, said))

    def finish(self) -> list[Row]:
        """Put the table in order and say in the manifest that it is whole; returns all rows."""
        # What is left there belongs to no case.
        shutil.rmtree(self.out / self._shard.file(PARTS), ignore_errors=True)
        rows = [self._table.rows[case.name] for case in self._cases]
        write_rows(self.out / self._shard.file(TABLE), rows)
        if self._shard == WHOLE:
            for writer in self._writers:
                writer.sweep(rows)
        self._manifest.write("complete", rows)
        return rows

    def _write(self, scored: tuple[Found, Case, Prediction]) -> None:
        found, case, said = scored
        try:
            with refusing_too_large():
                row = self._row(found, case, said)
        except RecapError as error:
            row = self._failed(found, error)
        self._table.add(row)

    def _row(self, found: Found, case: Case, said: Prediction) -> Row:
        """Write everything of a case, and tell it in a row."""
        name, several = found.name, case.kind != "image"
        with self.stage("decide"):
            decided = self._decision_columns(found, case, said)
        with self.stage("write"):
            map_file = _save_map(self.out, name, case, said)
            table = _save_image_table(self.out, name, said) if several else ""
        written: dict[str, str] = {}
        with self.stage("draw"):
            for writer in self._writers:
                written |= writer.write(name, case, said)
        if several:
            self.parts_of(found).remove()
        height, width = case.size_hw or said.map.shape[-2:]
        return Row(
            case=name,
            path=_place(found),
            sha256=self._seen[name].files,
            status="ok",
            kind=case.kind,
            images=str(len(said.by_image)),
            score=number_text(said.score),
            score_prototype=number_text(said.score_prototype),
            score_memory=number_text(said.score_memory),
            height=str(height),
            width=str(width),
            map=map_file,
            map_step_px=number_text(said.source_px_per_px),
            table=table,
            ignore_sha256=self._seen[name].ignored,
            **decided,
            **written,
        )

    def _decision_columns(self, found: Found, case: Case, said: Prediction) -> dict[str, str]:
        """Tell what was decided and why, and write the regions."""
        undecided = self._detector.undecided(case.kind, self.reading)
        decided = columns_of(said.decision, said.domain, undecided)
        calibration = self._detector.card.calibration
        if calibration is None:
            return decided
        ignored = None if self._masks is None else self._masks.of(Path(found.name))
        step, level = said.source_px_per_px, calibration.map_level
        regions = case_regions(case, said.map, level, ignored, px_per_value=step)
        file = f"regions/{found.name}.csv"
        write_atomic(self.out / file, regions_table(regions))
        return {"regions": str(len(regions)), "regions_table": file, **decided}

    def _failed(self, found: Found, error: RecapError) -> Row:
        seen = self._seen.get(found.name)
        digest, reason = "" if seen is None else seen.files, found.in_words(str(error))
        return Row(found.name, _place(found), digest, "error", error=reason)


def check_results_not_lost(out: Path, cases: Sequence[Found], inputs: Sequence[Path]) -> None:
    """Refuse a folder with results of files elsewhere that a run on `inputs` would lose.

    A table holds the cases of one run. Files that were taken away from the inputs go from it, and
    a folder that has moved is the same by its content. Those of another patient, whose slices
    may well have the same names, are neither.
    """
    if not out.is_dir():
        return
    found = {case.name: case for case in cases}
    roots = {path.absolute() for path in inputs}
    for row in finished_rows(out, WHOLE).values():
        place, same = Path(row.path).absolute(), found.get(row.case)
        if not roots.isdisjoint((place, *place.parents)):
            continue
        if same is None or digest_of(same.files) != row.sha256:
            raise InputError(
                f"{out} holds results of other files, such as {row.path}, which this run would "
                "drop or replace. Choose another --out."
            )


def digest_of(files: Sequence[Path]) -> str:
    """Hash a case's file, or of several their digests in order; empty if that cannot be done."""
    if not all(file.is_file() for file in files):  # a pipe would be waited for
        return ""
    try:
        digests = [sha256_of(file) for file in files]
    except OSError:
        return ""
    return digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()


def _place(found: Found) -> str:
    """A case's path for the table, whichever folder the next run is started in."""
    return str(Path(found.path).absolute())


def _save_map(out: Path, name: str, case: Case, said: Prediction) -> str:
    """Write a case's map: a volume on its source's own grid as NIfTI, all else as .npy."""
    if case.grid is not None:
        from recap.io.nifti import write_map_volume

        file = f"maps/{name}.map.nii.gz"
        write_map_volume(out / file, said.map, case.grid)
        return file
    file = f"maps/{name}.npy"
    with replacing(out / file) as stream:
        np.save(stream, said.map, allow_pickle=False)
    return file


def _save_image_table(out: Path, name: str, said: Prediction) -> str:
    """Write the scores of a case's slices, frames or tiles, in their order."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(IMAGE_COLUMNS)
    for number, image in enumerate(said.images):
        scores = (image.score, image.score_prototype, image.score_memory)
        writer.writerow([number, *image.origin_px, *map(number_text, scores)])
    file = f"images/{name}.csv"
    write_atomic(out / file, text.getvalue())
    return file
