"""One run of scoring into folders: what was asked for, and what came of each detector."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from recap.config import ReadingSettings, validated
from recap.data.cases import Search, Skipped, find_cases
from recap.encoders.memo import Memo
from recap.encoders.registry import RANDOM
from recap.errors import InputError, RecapError, SettingsError, require
from recap.io.window import parse_window
from recap.progress import Progress
from recap.report.page import PAGE, write_score_page
from recap.report.previews import write_previews
from recap.report.writers import DicomResults, OldDicom, Overlays
from recap.results.folder import check_results_not_lost, score_cases
from recap.results.manifest import Manifest, add_to_manifest
from recap.results.table import PARQUET, TABLE, WHOLE, Row, Shard, write_parquet
from recap.runtime.choose import load_many
from recap.scoring.bundle import read_card
from recap.scoring.bundle_folder import CARD, Bundle
from recap.scoring.detector import Detector
from recap.scoring.regions import ignore_masks

MEMO_BYTES = 8e9
"""What detectors on one encoder may keep of encoded images, on disk."""


@dataclass
class FolderResult:
    """What came of one detector's run."""

    rows: list[Row]
    out: Path
    table: Path
    left_alone: Sequence[Skipped] = ()
    """Files and folders among the inputs that are no cases, and why."""
    page: Path | None = None
    dicom: int | None = None
    """How many cases have DICOM results; None if those were not asked for."""
    failed: bool = False
    renewed: list[str] = field(default_factory=list)
    """Files of earlier runs that nobody asked for now, made anew of these rows."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ScoreRequest:
    """Everything that `score_folder` was asked for; may travel to another machine."""

    bundles: dict[Path, Path]
    """Detectors, each with the folder for its results."""
    inputs: tuple[Path, ...]
    report: bool = False
    parquet: bool = False
    dicom: bool = False
    ignore: Path | None = None
    window: str | None = None
    axis: str | None = None
    runtime: str | None = None
    device: str = "auto"
    """As asked for: each machine chooses what auto is."""
    random_weights: bool = False
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
        for out in self.bundles.values():
            _refuse_in_a_bundle(out)
            _refuse_among_images(out, self.inputs)


class Scoring:
    """A request under way: cases are found and detectors loaded, once for all shards."""

    def __init__(self, request: ScoreRequest, scratch: Path) -> None:
        self._request, self._scratch = request, scratch
        ignore = request.ignore
        leave_out = [*request.bundles.values(), *([] if ignore is None else [ignore])]
        search = find_cases(request.inputs, scratch / "archives", leave_out)
        self.search = _with_unused_masks(search, ignore)
        _refuse_random_weights(request)
        for out in request.bundles.values():
            check_results_not_lost(out, self.search.cases, request.inputs)

    @cached_property
    def _detectors(self) -> list[Detector]:
        request = self._request
        return load_many(
            list(request.bundles), request.device, request.random_weights, request.runtime
        )

    def score(self, shard: Shard, progress: Progress) -> list[FolderResult]:
        """Score a shard, or the whole, with one detector after the other."""
        request, cases = self._request, self.search.cases
        places = list(zip(self._detectors, request.bundles.items(), strict=True))
        readings = [reading_from(d.card.reading, request.window, request.axis) for d, _ in places]
        for (detector, (_, out)), reading in zip(places, readings, strict=True):
            if out.is_dir():  # all of them, before the first has worked for hours
                Manifest(out, detector, reading, request.ignore, shard).refuse_other_results()
        results = []
        with _encoding_once(self._detectors, self._scratch):
            for (detector, (bundle, out)), reading in zip(places, readings, strict=True):
                of_dicom = (
                    DicomResults(detector, cases, out, request.ignore)
                    if request.dicom
                    else OldDicom(out)
                )
                rows = score_cases(
                    detector,
                    cases,
                    out,
                    [Overlays(detector, out), of_dicom],
                    reading=reading,
                    ignore=request.ignore,
                    workers=request.workers,
                    batch=request.batch,
                    shard=shard,
                    progress=progress,
                )
                skipped = self.search.skipped
                told = {str(file): reason for file, reason in skipped}
                add_to_manifest(out, {}, shard=shard, left_alone=told)
                failed = any(row.status != "ok" for row in rows)
                result = FolderResult(rows, out, out / shard.file(TABLE), skipped, failed=failed)
                if isinstance(of_dicom, DicomResults):
                    _count_dicom(result, of_dicom, shard)
                if shard == WHOLE:
                    self._make_pages(detector, bundle, result, reading, progress)
                results.append(result)
        return results

    def _make_pages(
        self,
        detector: Detector,
        bundle: Path,
        result: FolderResult,
        reading: ReadingSettings,
        progress: Progress,
    ) -> None:
        """Write what is made of all rows; what an earlier run made of others is made anew."""
        out, request = result.out, self._request
        if request.parquet or (out / PARQUET).exists():
            _write_parquet(result, request.parquet)
        if request.report:
            started, cases = time.perf_counter(), self.search.cases
            failed = write_previews(
                detector, cases, result.rows, out, reading, Bundle(bundle), progress
            )
            result.warnings += [f"no preview: {reason}" for reason in failed.values()]
            add_to_manifest(out, {"previews": time.perf_counter() - started})
            result.page = write_score_page(out)
        elif (out / PAGE).exists():
            write_score_page(out)
            result.renewed.append(PAGE)


def result_folders(bundles: Sequence[Path], out: Path) -> dict[Path, Path]:
    """Give each detector its folder for results: with several, one of its name within `out`."""
    if len(bundles) == 1:
        return {bundles[0]: out}
    names = [bundle.resolve().name.removesuffix(".recap") for bundle in bundles]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"Two detectors are called '{twice[0]}', which is also where their results go. Rename "
            "one of them."
        )
    return {bundle: out / name for bundle, name in zip(bundles, names, strict=True)}


def reading_from(
    known: ReadingSettings, window: str | None = None, axis: str | None = None
) -> ReadingSettings:
    """Read files as is known, but for what was asked for."""
    asked = {k: v for k, v in (("window", window), ("axis", axis)) if v is not None}
    return validated(ReadingSettings, {**known.model_dump(), **asked}, "reading.")


def check_window(window: str | None) -> None:
    """Tell before the first file what every file would tell."""
    if window is not None:
        parse_window(window)


def _refuse_in_a_bundle(out: Path) -> None:
    """Bundles are copied and shared; pictures of patients must not travel with them."""
    place = out.resolve()
    for folder in (place, *place.parents):
        if Bundle(folder).has(CARD):
            raise InputError(
                f"--out {out} lies in the detector {folder}: results show patients, and whoever "
                "gets the detector would get them too. Choose another --out."
            )


def _refuse_among_images(out: Path, inputs: Sequence[Path]) -> None:
    """Results in a folder below the images are left out of the search; among them they cannot."""
    if any(path.resolve() == out.resolve() for path in inputs):
        raise InputError(
            f"--out {out} is also what to score: the next run would take overlays for images. "
            f"Choose another folder, such as {out / 'results'}."
        )


def _with_unused_masks(search: Search, ignore: Path | None) -> Search:
    """Ignore masks that belong to no case are named with what else was left alone."""
    if ignore is None:
        return search
    masks = ignore_masks(ignore, [Path(case.name) for case in search.cases])
    unused = [(mask, "an ignore mask that has the name of no case") for mask in masks.unused]
    return replace(search, skipped=(*search.skipped, *unused))


def _refuse_random_weights(request: ScoreRequest) -> None:
    cards = [read_card(bundle) for bundle in request.bundles]
    if request.random_weights and all(card.encoder.sha256 != RANDOM for card in cards):
        names = ", ".join(map(str, request.bundles))
        raise SettingsError(
            f"--random-weights: {names} was not fitted on random weights, so nothing would change. "
            "Leave the option out."
        )


@contextmanager
def _encoding_once(detectors: Sequence[Detector], scratch: Path) -> Iterator[None]:
    """Keep encoded images on disk meanwhile, where several detectors share an encoder.

    On a full disk images are encoded for each of them.
    """
    encoders = {id(detector.model.encoder): detector.model.encoder for detector in detectors}
    uses = Counter(id(detector.model.encoder) for detector in detectors)
    with ExitStack() as stack:
        for key, encoder in encoders.items():
            if uses[key] == 1 or not hasattr(encoder, "memo"):  # a residual network has no memo
                continue
            try:
                folder = stack.enter_context(TemporaryDirectory(dir=scratch))
            except OSError:  # no room there
                break
            encoder.memo = Memo(Path(folder), MEMO_BYTES, optional=True)
            stack.callback(setattr, encoder, "memo", None)
        yield


def _count_dicom(result: FolderResult, written: DicomResults, shard: Shard) -> None:
    result.dicom = sum(bool(row.dicom) for row in result.rows)
    result.failed |= bool(written.failed)
    result.warnings += written.failed.values()
    told = {"cases": result.dicom, "errors": written.failed}
    add_to_manifest(result.out, {}, shard=shard, dicom=told)


def _write_parquet(result: FolderResult, wanted: bool) -> None:
    path = result.out / PARQUET
    try:
        require("pyarrow", "tables")
    except RecapError as error:  # one that is wanted was refused before the work
        path.unlink()
        result.warnings.append(f"{path} was of an earlier run and is removed. {error}")
        return
    write_parquet(result.rows, path)
    add_to_manifest(result.out, {}, [PARQUET])
    if not wanted:
        result.renewed.append(PARQUET)
