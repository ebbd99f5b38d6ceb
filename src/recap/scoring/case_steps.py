"""The steps of a case on its way to a row: read and open, then, once it is scored, write."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from recap._download import sha256_of
from recap._files import make_folder
from recap.config import ReadingSettings
from recap.data.cases import Found
from recap.errors import RecapError, require
from recap.io import Case
from recap.io.decoding import BUDGET
from recap.io.formats import sniff
from recap.io.raster import TILES, raster_px
from recap.scoring.cases import CasePrediction, part_of, put_together
from recap.scoring.decided import decision_columns
from recap.scoring.detector import Detector
from recap.scoring.outputs import save_image_table, save_map
from recap.scoring.parts import Parts
from recap.scoring.prepared import SCORING_BYTES, Answer, Prepared, prepare
from recap.scoring.regions import IgnoreMasks
from recap.scoring.rows import OpenTable, Row, number_text
from recap.scoring.stages import Stages
from recap.scoring.too_large import refusing_too_large

_ALONE_BYTES = 10**9
"""What a picture may take while others are read and scored beside it."""
Draw = Callable[[Case, CasePrediction, Path], Mapping[str, str] | None]
"""Writes an overlay to a path; gives columns of the row for what else it wrote, or could not."""


@dataclass(frozen=True, eq=False)
class Target:
    """A detector and the folder for its results."""

    detector: Detector
    out: Path
    draw: Draw
    """May run in several threads at once."""
    incomplete: Callable[[Row], bool] = lambda row: False
    """Whether a finished case lacks what `draw` writes besides; it is then scored again."""
    forget: Callable[[str], None] = lambda name: None
    """Removes what `draw` wrote besides of a case that is about to be scored, if ever it was."""
    sweep: Callable[[Sequence[Row]], None] = lambda rows: None
    """Removes what `draw` wrote besides and none of these rows, those of all cases, names."""


@dataclass(frozen=True, eq=False)
class Run:
    """A detector on its way through the cases."""

    target: Target
    parts: Path
    reading: ReadingSettings
    masks: IgnoreMasks | None
    table: OpenTable
    stages: Stages

    @property
    def detector(self) -> Detector:
        """What scores."""
        return self.target.detector

    @property
    def out(self) -> Path:
        """Where the results go."""
        return self.target.out

    def ignore_digest(self, name: str) -> str:
        """The hash of a case's ignore mask; empty without one."""
        file = None if self.masks is None else self.masks.files.get(Path(name))
        return "" if file is None else digest_of([file]) or "unreadable"

    def has(self, name: str, digest: str, ignored: str) -> bool:
        """Whether a case is finished, its files are those that were scored, and its results there.

        Somebody may have deleted maps to save space and now wants them back.
        """
        earlier = self.table.finished.get(name)
        if earlier is None or (earlier.sha256, earlier.ignore_sha256) != (digest, ignored):
            return False
        if not all((self.out / file).is_file() for file in earlier.files):
            return False
        return not self.target.incomplete(earlier)


@dataclass(frozen=True, eq=False)
class Opened:
    """A case that was read. A picture is prepared; a volume may still have to be opened."""

    found: Found
    digest: str
    runs: tuple[Run, ...]
    """Those that have no result of it yet."""
    ignored: str = ""
    """The hash of its ignore mask."""
    case: Case | None = None
    prepared: Prepared | None = None
    problem: RecapError | None = None
    """Why it cannot be read."""

    @property
    def path(self) -> str:
        """Its path for the table, whichever folder the next run is started in."""
        return str(Path(self.found.path).absolute())

    def failed(self, error: RecapError) -> Row:
        """The row of a case that cannot be scored."""
        reason = self.found.in_words(str(error))
        return Row(self.found.name, self.path, self.digest, "error", error=reason)


@dataclass(frozen=True, eq=False)
class Scored:
    """A case with what one model said: of a picture, in the frame of the encoder's square."""

    run: Run
    opened: Opened
    result: Answer | CasePrediction
    parts: Parts | None = None


def read_case(runs: Sequence[Run], found: Found) -> Opened:
    """Read a case up to the model, for all runs that lack it; they read alike."""
    stage = runs[0].stages.stage
    with stage("hash"):
        digest, ignored = digest_of(found.files), runs[0].ignore_digest(found.name)
    lacking = tuple(run for run in runs if not run.has(found.name, digest, ignored))
    opened = Opened(found, digest, lacking, ignored)
    try:
        for run in lacking:
            run.target.forget(found.name)
        if not opened.runs or _is_read_alone(found):
            return opened
        with refusing_too_large():
            opened = open_case(opened)
            assert opened.case is not None
            if opened.case.kind != "image":
                return opened
            with stage("decode"):
                image = opened.case.images[0]
                # Decoded once, also for drawing.
                case = replace(opened.case, images=[image])
                prepared = prepare(runs[0].detector, image)
                return replace(opened, case=case, prepared=prepared)
    except RecapError as error:
        return replace(opened, problem=error)


def open_case(opened: Opened) -> Opened:
    """Open a case, unless it is open."""
    if opened.case is not None:
        return opened
    run = opened.runs[0]
    with run.stages.stage("open"):
        case = opened.found.open(run.reading)
    if case.grid is not None:
        require("nibabel", "volumes")  # told before the work rather than after it
    return replace(opened, case=case)


def parts_of(run: Run, opened: Opened) -> Parts:
    """The place where a run keeps the results of a case's images meanwhile."""
    # Without a digest, what another case left behind could be taken for its own.
    name = f"{opened.digest} {opened.found.name}".encode(errors="surrogateescape")
    return Parts(run.parts / sha256(name).hexdigest()[:16] if opened.digest else None)


def write_case(scored: Scored) -> Row:
    """Decide, write the map and the tables, draw; returns the row."""
    run, opened = scored.run, scored.opened
    out, stage = run.out, run.stages.stage
    found, case = opened.found, opened.case
    assert case is not None
    with stage("decide"):
        prediction = _prediction(run, scored.result, case)
        decided = decision_columns(
            run.detector, found, case, prediction, run.reading, out, run.masks
        )
    with stage("write"):
        map_file = save_map(out, found.name, case, prediction)
        several = case.kind != "image"
        table = save_image_table(out, found.name, prediction) if several else ""
    with stage("draw"):
        overlay_file = f"overlays/{found.name}.png"
        make_folder((out / overlay_file).parent)
        drawn = run.target.draw(case, prediction, out / overlay_file) or {}
    if scored.parts is not None:
        scored.parts.remove()
    height, width = case.size_hw or prediction.map.shape[-2:]
    total = prediction.total
    return Row(
        case=found.name,
        path=opened.path,
        sha256=opened.digest,
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
        ignore_sha256=opened.ignored,
        **decided,
        **drawn,
    )


def _prediction(run: Run, result: Answer | CasePrediction, case: Case) -> CasePrediction:
    if isinstance(result, CasePrediction):
        return result
    return put_together(run.detector, case, [part_of(run.detector, result, case)], run.reading)


def _is_read_alone(found: Found) -> bool:
    """Tell volumes and very large pictures: one for each thread would take too much memory."""
    if found.problem:
        return False
    if found.series is not None:
        return True
    kind = sniff(found.files[0])
    taken = raster_px(found.files[0]) * SCORING_BYTES if kind == "raster" else 0
    BUDGET.check(taken, str(found.files[0]), TILES)  # before it is decoded in vain
    return taken > _ALONE_BYTES or kind in ("nifti", "nrrd", "slide")


def digest_of(files: Sequence[Path]) -> str:
    """The sha256 of a case's file; of several, that of their digests in order."""
    if not all(file.is_file() for file in files):  # a pipe would be waited for
        return ""
    try:
        digests = [sha256_of(file) for file in files]
    except OSError:
        return ""
    return digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()
