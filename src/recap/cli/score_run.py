"""The steps of `recap score`: which detectors, and what is written for each."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recap.config import ReadingSettings, settings_from_dict
from recap.data.cases import Found, find_cases
from recap.errors import InputError
from recap.extras import require
from recap.io import Case
from recap.report import case_overlay, save_png
from recap.report.previews import write_previews
from recap.report.score_page import write_score_page
from recap.report.score_table import write_parquet
from recap.runtime.choice import choose_runtime
from recap.runtime.loading import load_many
from recap.scoring.batch import score_to_folder
from recap.scoring.bundle import CARD, read_card
from recap.scoring.cases import CasePrediction
from recap.scoring.detector import Detector
from recap.scoring.rows import Row
from recap.scoring.run_manifest import add_to_manifest
from recap.scoring.shards import TABLE, WHOLE, Shard

MEMO_BYTES = 8e9
"""What several detectors with one encoder may keep of encoded images, on disk, while they run."""
Progress = Callable[[str, int, int, str], None]


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
        if self.window is not None:
            from recap.io.window import parse_window

            parse_window(self.window)

    def reading(self, fitted: ReadingSettings) -> ReadingSettings:
        """How files are read: as when fitted, but for what was asked for."""
        asked = {"window": self.window, "axis": self.axis}
        given = {key: value for key, value in asked.items() if value is not None}
        return settings_from_dict({"reading": {**fitted.model_dump(), **given}}).reading


@dataclass
class Outcome:
    """What came of one detector's run."""

    rows: list[Row]
    out: Path
    table: Path
    page: Path | None = None
    dicom: int | None = None
    """How many cases have new DICOM results; None if those were not asked for."""
    failed: bool = False
    warnings: list[str] = field(default_factory=list)


def split_paths(paths: Sequence[Path], out: Path) -> tuple[dict[Path, Path], list[Path]]:
    """The leading bundles, each with the folder for its results, and what they are to score."""
    count = next((i for i, path in enumerate(paths) if not (path / CARD).is_file()), len(paths))
    if count == 0:
        read_card(paths[0])  # tells what is wrong with it
    if count == len(paths):
        raise InputError("Say what to score: recap score BUNDLE… PATH… --out DIR.")
    bundles = list(paths[:count])
    if count == 1:
        return {bundles[0]: out}, list(paths[count:])
    names = [bundle.resolve().name.removesuffix(".recap") for bundle in bundles]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"Two detectors are called '{twice[0]}', which is also where their results go. Rename "
            "one of them."
        )
    return {b: out / name for b, name in zip(bundles, names, strict=True)}, list(paths[count:])


@dataclass(frozen=True)
class Order:
    """Everything that `recap score` was asked for; may travel to another machine."""

    bundles: dict[Path, Path]
    """Detectors, each with the folder for its results."""
    inputs: tuple[Path, ...]
    wanted: Wanted
    device: str
    random_weights: bool = False
    runtime: str | None = None


class Scoring:
    """An order under way: cases are found and detectors loaded, once for all shards."""

    def __init__(self, order: Order, scratch: Path) -> None:
        self._order = order
        self.search = find_cases(order.inputs, scratch / "archives")
        self._detectors = load_detectors(
            list(order.bundles),
            order.device,
            order.random_weights,
            order.runtime,
            scratch / "encoded",
        )

    def score(self, shard: Shard, progress: Progress) -> list[Outcome]:
        """Score a shard, or the whole, with every detector."""
        order = self._order
        return [
            score_with(detector, bundle, self.search.cases, out, order.wanted, progress, shard)
            for detector, (bundle, out) in zip(self._detectors, order.bundles.items(), strict=True)
        ]


def load_detectors(
    bundles: Sequence[Path], device: str, random_weights: bool, runtime: str | None, memo: Path
) -> list[Detector]:
    """Load detectors; where several share an encoder, an image is encoded once for all of them."""
    from recap.encoders.memo import TapsMemo
    from recap.encoders.vit import Encoder

    detectors = load_many(bundles, device, random_weights)
    encoders = [detector.model.encoder for detector in detectors]
    for encoder in encoders:
        if isinstance(encoder, Encoder) and sum(e is encoder for e in encoders) > 1:
            encoder.memo = encoder.memo or TapsMemo(memo, MEMO_BYTES)
    if runtime is not None:
        for detector, bundle in zip(detectors, bundles, strict=True):
            choose_runtime(detector, runtime, bundle, side_by_side=True)
    return detectors


def score_with(
    detector: Detector,
    bundle: Path,
    cases: Sequence[Found],
    out: Path,
    wanted: Wanted,
    progress: Progress,
    shard: Shard = WHOLE,
) -> Outcome:
    """Score all cases, or those of a shard, into a folder, with whatever else is wanted."""
    reading = wanted.reading(detector.card.settings.reading)
    results = None
    if wanted.dicom:
        from recap.report.score_dicom import DicomResults

        results = DicomResults(detector, cases, out, wanted.ignore)
    one_at_a_time = threading.Lock()

    def draw(case: Case, prediction: CasePrediction, path: Path) -> None:
        save_png(case_overlay(case, prediction, detector.map_scale), path)
        if results is not None:
            name = path.relative_to(out / "overlays").as_posix().removesuffix(".png")
            with one_at_a_time:  # it counts, and writes files that belong together
                results.write(name, case, prediction)

    extra: dict[str, Any] = {} if results is None else {"incomplete": results.missing}
    rows = score_to_folder(
        detector,
        cases,
        out,
        draw,
        progress,
        reading,
        wanted.ignore,
        workers=wanted.workers,
        batch=wanted.batch,
        shard=shard,
        **extra,
    )
    failed = any(row.status != "ok" for row in rows)
    outcome = Outcome(rows, out, out / shard.file(TABLE), failed=failed)
    if results is not None:
        outcome.dicom = results.written
        outcome.failed |= bool(results.failed)
        outcome.warnings += results.failed.values()
        told = {"written": results.written, "errors": results.failed}
        add_to_manifest(out, {}, shard=shard, dicom=told)
    if wanted.parquet:
        write_parquet(rows, out / "scores.parquet")
        add_to_manifest(out, {}, ["scores.parquet"])
    if wanted.report:
        _write_page(detector, bundle, cases, outcome, reading, progress)
    return outcome


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
    failed = write_previews(detector, cases, outcome.rows, out, reading, bundle, progress)
    outcome.warnings += [f"no preview: {reason}" for reason in failed.values()]
    add_to_manifest(out, {"previews": time.perf_counter() - started})
    outcome.page = write_score_page(out)
