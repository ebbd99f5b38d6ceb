"""Sources of the tables' numbers: the paper's and ours, under one set of names."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import fmean, stdev
from typing import Any, NamedTuple

from recap.bench.agreement import Averaged, refuse_mixed
from recap.bench.notes import Shown, own_notes, run_notes
from recap.bench.possible import Violation, find_violations
from recap.bench.published import (
    DATASETS,
    PUBLISHED_SEEDS,
    Note,
    PublishedCell,
    TableName,
    load_published,
    load_splits,
    split_note,
)
from recap.bench.supports import SupportRecord
from recap.bench.table_model import Cell, Number
from recap.data.benchmark import PAPER_NAMES

# The paper's names of variants and encoders, by ours.
ALIASES = {
    "tokens": "VisualAD-style anchors",
    "static": "Static prototypes",
    "unbounded": "Unbounded residual",
    "bounded": "Bounded residual w/o gate",
    "gated": "Bounded gated residual",
    "no_memory": "w/o MB",
    "no_conditioning": "w/o CCM",
    "no_layer_fusion": "w/o LF",
    "clip-vit-b16": "CLIP ViT-B/16",
    "clip-vit-l14-336": "CLIP ViT-L/14@336px",
    "dinov2-base": "DINOv2 ViT-B/14",
    "dinov2-large": "DINOv2 ViT-L/14",
    **PAPER_NAMES,
}


@dataclass(frozen=True)
class ResultCell:
    """One finished run of ours.

    Metrics are fractions under `level_metric`, such as image_auroc or pixel_aupro_0.3; a metric
    that is missing, None or NaN shows as a dash. For speed they are those of `efficiency_table`.
    `counts` are the abnormal and normal test images, where known; `fitted_on` of them are support
    images, and `without_mask` of the abnormal ones have no mask though others do. `cell` is what
    was run, as it stands in the result's file; a timing has none. `support` is what it was fitted
    on, where the file tells.
    """

    method: str
    dataset: str
    shots: int
    seed: int
    metrics: Mapping[str, float | None]
    backbone: str = ""
    counts: tuple[int, int] | None = None
    cell: Mapping[str, Any] = field(default_factory=dict)
    fitted_on: int = 0
    without_mask: int = 0
    support: SupportRecord | None = None


class Key(NamedTuple):
    """The place of a number: ours and published ones that agree in it stand side by side."""

    shots: int
    method: str
    backbone: str
    dataset: str
    level: str
    metric: str


@dataclass(frozen=True)
class CellSource:
    """The numbers of one table; only the backbone table tells encoders apart."""

    table: TableName
    published: Mapping[Key, PublishedCell]
    ours: Mapping[Key, Sequence[float]]
    violations: Mapping[PublishedCell, Violation]
    counts: Mapping[str, frozenset[tuple[int, int]]] = field(default_factory=dict)
    runs: Sequence[ResultCell] = ()
    """Our results that the numbers come from."""

    def cell(self, key: Key) -> Cell:
        """Our mean over seeds beside the published number."""
        theirs = self.published.get(key)
        published = None
        if theirs:
            seeds = PUBLISHED_SEEDS if theirs.table == "seeds" else None
            published = Number(theirs.value, theirs.std, seeds)
        return Cell(
            ours=mean_over_seeds(self.ours.get(key, ())),
            published=published,
            violation=self.violations.get(theirs) if theirs else None,
        )

    def has(self, key: Key) -> bool:
        """Tell whether there is a number of either kind."""
        return key in self.published or key in self.ours

    def methods(self) -> list[str]:
        """Methods or variants: the paper's in its order, then ours by name."""
        theirs = dict.fromkeys(key.method for key in self.published)
        return [*theirs, *sorted({key.method for key in self.ours} - theirs.keys())]

    def backbones(self) -> list[str]:
        """Encoders: the paper's in its order, then ours by name."""
        theirs = dict.fromkeys(key.backbone for key in self.published)
        return [*theirs, *sorted({key.backbone for key in self.ours} - theirs.keys())]

    def datasets(self) -> list[str]:
        """Data sets: the paper's in its order, then ours by name."""
        names = {key.dataset for key in (*self.published, *self.ours)}
        return [*(n for n in DATASETS if n in names), *sorted(names.difference(DATASETS))]

    def shots(self) -> list[int]:
        """All numbers of shots, rising."""
        return sorted({key.shots for key in (*self.published, *self.ours)})

    def own_shots(self, method: str) -> frozenset[int]:
        """The numbers of shots that we have a number of this method for."""
        return frozenset(key.shots for key in self.ours if key.method == method)

    def split_notes(self, dataset: str) -> tuple[Note, ...]:
        """A footnote where our test split is another one than the paper's."""
        return split_note(dataset, self.counts.get(dataset, ()), load_splits().get(dataset))

    def run_notes(self) -> tuple[Note, ...]:
        """Say what our numbers are of, as footnotes of the whole table."""
        variants = self.table in ("components", "conditioning", "backbones")
        return run_notes(self._shown(), bool(self.published), variants)

    def own_notes(self) -> tuple[Note, ...]:
        """The same, and what must be said of the data, where nothing published is shown."""
        return own_notes(self._shown())

    def _shown(self) -> list[Shown]:
        return [
            Shown(
                run.method,
                run.dataset,
                run.seed,
                run.cell,
                run.fitted_on,
                run.without_mask,
                run.counts,
            )
            for run in self.runs
        ]


def cell_source(
    table: TableName, results: Iterable[ResultCell], shots: int | None = None
) -> CellSource:
    """Gather a table's numbers, of one number of shots or of all."""
    cells = [c for c in load_published() if c.table == table and shots in (None, c.shots)]
    published = {Key(c.shots, c.method, c.backbone, c.dataset, c.level, c.metric): c for c in cells}
    chosen = [r for r in under_paper_names(table, results) if shots in (None, r.shots)]
    counts: dict[str, frozenset[tuple[int, int]]] = {}
    for result in chosen:
        if result.counts:
            seen = counts.get(result.dataset, frozenset())
            counts[result.dataset] = seen | {result.counts}
    violations = {violation.cell: violation for violation in find_violations(cells)}
    return CellSource(table, published, _ours(chosen), violations, counts, chosen)


def under_paper_names(table: TableName, results: Iterable[ResultCell]) -> list[ResultCell]:
    """Our results under the names that the paper uses in a table; no mean may mix settings."""
    named = [_named(result, table) for result in results]
    refuse_mixed(map(_averaged, named))
    return named


def paper_name(name: str, known: Collection[str]) -> str:
    """The paper's spelling of a name, or the name itself where the paper has no such thing."""
    spellings = {_plain(spelling): spelling for spelling in known}
    spellings |= {_plain(ours): theirs for ours, theirs in ALIASES.items() if theirs in known}
    return spellings.get(_plain(name), name)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _named(result: ResultCell, table: TableName) -> ResultCell:
    """The result under the paper's names, with the encoder only where the table shows it."""
    methods, backbones = _names(table)
    shows_encoder = table in ("backbones", "efficiency")
    return replace(
        result,
        method="ReCAP" if table == "backbones" else paper_name(result.method, methods),
        dataset=paper_name(result.dataset.removesuffix("_AD"), DATASETS),
        backbone=paper_name(result.backbone, backbones) if shows_encoder else "",
    )


@cache
def _names(table: TableName) -> tuple[frozenset[str], frozenset[str]]:
    """The paper's methods and encoders in a table."""
    cells = [cell for cell in load_published() if cell.table == table]
    return frozenset(c.method for c in cells), frozenset(c.backbone for c in cells)


def _averaged(result: ResultCell) -> Averaged:
    encoder = f" ({result.backbone})" if result.backbone else ""
    px = result.metrics.get("input_px")
    size = f" at {px:g} px" if px else ""
    where = f"{result.method}{encoder}{size} on {result.dataset or 'speed'}, {result.shots} shots"
    return Averaged(where, result.seed, result.cell, result.counts, result.support)


def _ours(results: Iterable[ResultCell]) -> dict[Key, list[float]]:
    found: dict[Key, list[float]] = {}
    for r in results:
        for name, value in r.metrics.items():
            level, _, metric = name.partition("_")
            if level in ("image", "pixel") and value is not None and math.isfinite(value):
                key = Key(r.shots, r.method, r.backbone, r.dataset, level, metric)
                found.setdefault(key, []).append(100 * value)
    return found


def mean_over_seeds(values: Sequence[float]) -> Number | None:
    """Their mean with its spread, if there are any."""
    if not values:
        return None
    spread = stdev(values) if len(values) > 1 else None
    return Number(fmean(values), spread, seeds=len(values))
