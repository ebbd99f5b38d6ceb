"""Scoring many cases into a folder: a table, raw maps, overlays and a manifest.

A case that cannot be read becomes a row with its reason. A row is written as soon as its case is
done, and the images of a volume or slide are kept one by one, so an interrupted run goes on where
it stopped.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from recap.config import ReadingSettings
from recap.data.cases import Found
from recap.errors import RecapError
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
from recap.scoring.run_manifest import TABLE, RunManifest

PARTS = "parts"
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
    incomplete: Callable[[Row], bool] = lambda row: False,
) -> list[Row]:
    """Score every case that has no result yet; returns all rows, in the order of the cases.

    Progress comes in two stages: "score" counts cases, "images" those of a volume or slide.
    `ignore` is a folder of masks named like the cases: what they mark is in no region. A finished
    case that is `incomplete` (it lacks what `draw` writes besides) is scored again.
    """
    reading = reading or detector.card.settings.reading
    masks = None if ignore is None else ignore_masks(ignore, [Path(c.name) for c in cases])
    out.mkdir(parents=True, exist_ok=True)
    manifest = RunManifest(out, detector, reading, decided_by(detector, ignore))
    manifest.refuse_other_results()
    finished = {row.case: row for row in read_rows(out / TABLE) if row.status == "ok"}
    manifest.write("running", [])
    rows: list[Row] = []
    with appending(out / TABLE, finished.values()) as append:
        for index, found in enumerate(cases):
            progress("score", index, len(cases), found.name)
            with manifest.stage("hash"):
                digest = _digest(found.files)
            row = finished.get(found.name)
            if row is None or row.sha256 != digest or incomplete(row):
                one = _One(detector, found, digest, out, draw, reading, progress, masks, manifest)
                row = one.score()
                append(row)
            rows.append(row)
    progress("score", len(cases), len(cases), "")
    shutil.rmtree(out / PARTS, ignore_errors=True)  # what is left there belongs to no case
    write_rows(out / TABLE, rows)
    manifest.write("complete", rows)
    return rows


@dataclass(frozen=True, eq=False)
class _One:
    """One case on its way to a row."""

    detector: Detector
    found: Found
    digest: str
    out: Path
    draw: Draw
    reading: ReadingSettings
    progress: Progress
    masks: IgnoreMasks | None
    manifest: RunManifest

    def score(self) -> Row:
        """The row of the case; an error becomes one too."""
        found = self.found
        try:
            return self._score()
        except RecapError as error:
            reason = found.in_words(str(error))
            return Row(found.name, found.path, self.digest, "error", error=reason)

    def _score(self) -> Row:
        found, out, stage = self.found, self.out, self.manifest.stage
        with stage("open"):
            case = found.open(self.reading)
        several = case.kind != "image"
        if case.grid is not None:
            require("nibabel", "volumes")  # told before the work rather than after it
        # Without a digest, what another case left behind could be taken for its own.
        parts = Parts(out / PARTS / self.digest[:16] if several and self.digest else None)

        def count(done: int, total: int) -> None:
            if several:
                self.progress("images", done, total, found.name)

        with stage("score"):
            prediction = score_case(self.detector, case, parts, count, reading=self.reading)
        with stage("decide"):
            decided = decision_columns(
                self.detector, found, case, prediction, self.reading, out, self.masks
            )
        with stage("write"):
            map_file = save_map(out, found.name, case, prediction)
            table = save_image_table(out, found.name, prediction) if several else ""
        with stage("draw"):
            overlay_file = f"overlays/{found.name}.png"
            (out / overlay_file).parent.mkdir(parents=True, exist_ok=True)
            self.draw(case, prediction, out / overlay_file)
        parts.remove()
        height, width = case.size_hw or prediction.map.shape[-2:]
        total = prediction.total
        return Row(
            case=found.name,
            path=found.path,
            sha256=self.digest,
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
