"""The paper's tables with our results beside the published ones; or our results alone.

    tables = paper_tables(collect(out))
    text = render(tables, "md")      # recap.bench.render

Best and second are found among the methods (or variants) that a table compares: across a row of
the zero- and few-shot tables, whose columns are methods, and down a column of the others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recap.bench.cells import MeasuredOn
from recap.bench.published import Level, caveats_for, extension_note
from recap.bench.results import GRID, POOL, measured_on, named_results
from recap.bench.speed_table import efficiency_table
from recap.bench.table_cells import CellSource, Key, ResultCell, cell_source
from recap.bench.table_model import (
    Column,
    Label,
    Row,
    Table,
    rank_across,
    rank_down,
)
from recap.errors import InputError

METRIC_NAMES = {
    "auroc": "AUROC",
    "f1_max": "F1-max",
    "ap": "AP",
    "pro": "PRO",
    "aupro_0.3": "AUPRO 0.3",
}
METRICS: dict[Level, tuple[str, ...]] = {
    "image": ("auroc", "f1_max", "ap"),
    "pixel": ("auroc", "f1_max", "pro", "aupro_0.3"),
}
LEVEL_NAMES: dict[Level, str] = {"image": "Image", "pixel": "Pixel"}
TASK_NAMES: dict[Level, str] = {"image": "AC", "pixel": "AS"}
PAPER_SHOTS = (2, 4, 8, 16)
ABLATION_SHOTS = 4
COMPONENTS = ("MB", "CCM", "LF")


@dataclass(frozen=True)
class Results:
    """Our finished runs by the experiment they belong to; `runs` is the main grid."""

    runs: Sequence[ResultCell] = ()
    components: Sequence[ResultCell] = ()
    conditioning: Sequence[ResultCell] = ()
    backbones: Sequence[ResultCell] = ()
    speed: Sequence[ResultCell] = ()


def paper_tables(results: Results | None = None) -> list[Table]:
    """Every table of the paper, and one more for each further number of shots that we ran."""
    given = results or Results()
    shots = sorted({*PAPER_SHOTS, *(run.shots for run in given.runs if run.shots)})
    return [
        zero_shot_table(given.runs),
        *(few_shot_table(given.runs, k) for k in shots),
        seeds_table(given.runs),
        components_table(given.components),
        conditioning_table(given.conditioning),
        backbones_table(given.backbones),
        efficiency_table(given.speed),
    ]


def zero_shot_table(results: Iterable[ResultCell] = ()) -> Table:
    """Zero-shot, leave-one-out: one row per data set and metric, one column per method."""
    source = cell_source("zero_shot", results, shots=0)
    return _accuracy_table(source, 0, "zero-shot", "Zero-shot anomaly detection")


def few_shot_table(results: Iterable[ResultCell], shots: int) -> Table:
    """K normal and K abnormal support images: rows and columns as in the zero-shot table."""
    source = cell_source("few_shot", results, shots=shots)
    title = f"Few-shot anomaly detection, K = {shots}"
    return _accuracy_table(source, shots, f"few-shot-{shots}", title)


def seeds_table(results: Iterable[ResultCell] = ()) -> Table:
    """Few-shot AUROC as mean ± standard deviation over seeds, a block of methods per K."""
    source = cell_source("seeds", [result for result in results if result.shots])
    columns, keys = _task_columns(source, source.shots()[:1])
    rows: list[Row] = []
    for k in source.shots():
        block = [
            _row(source, (f"K = {k}", name), [key._replace(shots=k, method=name) for key in keys])
            for name in source.methods()
        ]
        rows += rank_down([row for row in block if _filled(row)], columns)
    title = "Few-shot AUROC (%) over seeds, mean ± standard deviation"
    return _table(source, "seeds", title, ("Setting", "Method"), columns, rows)


def components_table(results: Iterable[ResultCell] = ()) -> Table:
    """The 4-shot AUROC without the memory bank, the conditioning or the layer fusion."""
    source = cell_source("components", results, shots=ABLATION_SHOTS)
    columns, keys = _task_columns(source, [ABLATION_SHOTS])
    rows = []
    for variant in source.methods():
        # A tick for each component that a variant of the paper keeps.
        known = variant == "ReCAP" or variant.startswith("w/o ")
        parts = ("✓" if known and not variant.endswith(f" {part}") else "" for part in COMPONENTS)
        own = [key._replace(method=variant) for key in keys]
        rows.append(_row(source, (variant, *parts), own))
    stubs = ("Variant", *COMPONENTS)
    title = f"Components, {ABLATION_SHOTS}-shot AUROC (%)"
    return _table(source, "components", title, stubs, columns, rank_down(rows, columns))


def conditioning_table(results: Iterable[ResultCell] = ()) -> Table:
    """AUROC of the ways to condition the prototypes on the image."""
    source = cell_source("conditioning", results)
    columns, keys = _task_columns(source, source.shots())
    rows = [
        _row(source, (variant,), [key._replace(method=variant) for key in keys])
        for variant in source.methods()
    ]
    title = "Prototype conditioning, AUROC (%)"
    return _table(source, "conditioning", title, ("Variant",), columns, rank_down(rows, columns))


def backbones_table(results: Iterable[ResultCell] = ()) -> Table:
    """ReCAP's AUROC on other frozen encoders, a block per number of shots."""
    source = cell_source("backbones", results)
    # All rows share the heads of the columns: caveats of few-shot rows must not give way to zero.
    few_shot_first = sorted(source.shots(), key=lambda shots: shots == 0)
    columns, keys = _task_columns(source, few_shot_first[:1])
    rows: list[Row] = []
    for k in source.shots():
        block = [
            _row(
                source,
                (str(k), backbone),
                [key._replace(shots=k, method="ReCAP", backbone=backbone) for key in keys],
            )
            for backbone in source.backbones()
        ]
        rows += rank_down([row for row in block if _filled(row)], columns)
    stubs = ("Shots", "Backbone")
    return _table(source, "backbones", "ReCAP by encoder, AUROC (%)", stubs, columns, rows)


def _accuracy_table(source: CellSource, shots: int, key: str, title: str) -> Table:
    methods = source.methods()
    columns = [
        Column(Label(method, extension_note(method, source.own_shots(method))))
        for method in methods
    ]
    rows = []
    for level, metrics in METRICS.items():
        for dataset in source.datasets():
            for metric in metrics:
                keys = [Key(shots, method, "", dataset, level, metric) for method in methods]
                if any(source.has(place) for place in keys):
                    labels = _accuracy_labels(source, shots, level, dataset, metric)
                    row = Row(labels, tuple(source.cell(place) for place in keys))
                    rows.append(rank_across(row, columns))
    stubs = ("Level", "Dataset", "Metric")
    return _table(source, key, f"{title}, in %", stubs, columns, rows)


def _accuracy_labels(
    source: CellSource, shots: int, level: Level, dataset: str, metric: str
) -> tuple[Label, ...]:
    about_data = caveats_for(source.table, "dataset", dataset, shots) + source.split_notes(dataset)
    about_metric = caveats_for(source.table, "metric", metric)
    return (
        Label(LEVEL_NAMES[level]),
        Label(dataset, about_data),
        Label(METRIC_NAMES[metric], about_metric),
    )


def _task_columns(source: CellSource, shots: Sequence[int]) -> tuple[list[Column], list[Key]]:
    """Image and pixel AUROC of each data set (and shots, where several), and what they show."""
    several = len(shots) > 1
    present = {
        (key.dataset, key.level, key.metric, key.shots if several else None)
        for key in (*source.published, *source.ours)
    }
    columns, keys = [], []
    for k in shots:
        for dataset in source.datasets():
            notes = caveats_for(source.table, "dataset", dataset, k) + source.split_notes(dataset)
            setting = f"{k}-shot" if k else "Zero-shot"
            name = f"{setting} {dataset}" if several else dataset
            for level, task in TASK_NAMES.items():
                if (dataset, level, "auroc", k if several else None) in present:
                    columns.append(Column(Label(task), Label(name, notes)))
                    keys.append(Key(k, "", "", dataset, level, "auroc"))
    return columns, keys


def _row(source: CellSource, labels: Sequence[str], keys: Sequence[Key]) -> Row:
    shots = {key.shots for key in keys}
    heads = tuple(
        Label(
            text,
            caveats_for(source.table, "row", text)
            + extension_note(text, shots & source.own_shots(text)),
        )
        for text in labels
    )
    return Row(heads, tuple(source.cell(key) for key in keys))


def _filled(row: Row) -> bool:
    return any(cell.ours or cell.published for cell in row.cells)


def _table(
    source: CellSource,
    key: str,
    title: str,
    stubs: tuple[str, ...],
    columns: Sequence[Column],
    rows: Sequence[Row],
) -> Table:
    head = Label(title, caveats_for(source.table, "table") + source.run_notes())
    return Table(key, head, stubs, tuple(columns), tuple(rows))


def own_table(results: Iterable[ResultCell]) -> Table:
    """One row per number of shots, data set and metric; one column per method."""
    source = replace(cell_source("seeds", results), published={}, violations={})
    columns = [
        Column(Label(method, extension_note(method, source.own_shots(method))), decimals=1)
        for method in source.methods()
    ]
    rows = [rank_across(row, columns) for row in _rows(source)]
    pools = any(measured_on(run.cell) == "pool" for run in source.runs)
    title = Label(f"Ours{' on the pools' if pools else ''}, in %", source.own_notes())
    return Table("ours", title, ("K", "Dataset", "Metric"), tuple(columns), tuple(rows))


def _rows(source: CellSource) -> Iterable[Row]:
    for shots in source.shots():
        for level, metrics in METRICS.items():
            for dataset in source.datasets():
                for metric in metrics:
                    keys = [
                        Key(shots, method, "", dataset, level, metric)
                        for method in source.methods()
                    ]
                    if any(source.has(key) for key in keys):
                        name = f"{LEVEL_NAMES[level]} {METRIC_NAMES[metric]}"
                        about = caveats_for("few_shot", "metric", metric)
                        labels = (Label(str(shots)), Label(dataset), Label(name, about))
                        yield Row(labels, tuple(source.cell(key) for key in keys))


def collect(out: Path) -> Results:
    """The finished cells on the test splits of a folder, by the experiment that they belong to."""
    return Results(
        runs=_on_test(experiment_cells(out, GRID)),
        components=_on_test(experiment_cells(out, "components")),
        conditioning=_on_test(experiment_cells(out, "conditioning")),
        backbones=_on_test(experiment_cells(out, "backbones")),
    )


def _on_test(cells: tuple[ResultCell, ...]) -> tuple[ResultCell, ...]:
    """A study may be of the pools, and nothing of them stands beside published numbers."""
    return tuple(cell for cell in cells if measured_on(cell.cell) == "test")


def grid_cells(out: Path, on: MeasuredOn) -> tuple[ResultCell, ...]:
    """The finished cells of `recap bench run` on the test splits, or on the pools; never none."""
    found = experiment_cells(out, POOL) if on == "pool" else collect(out).runs
    if not found:
        where, option = ("on the pools", " --on pool") if on == "pool" else ("of a grid", "")
        raise InputError(
            f"{out}: no finished results {where}. Make some with `recap bench run{option} --out "
            f"{out}`.",
            path=out,
        )
    return tuple(found)


def experiment_cells(out: Path, name: str) -> tuple[ResultCell, ...]:
    """The finished cells of an experiment, each named after its variant."""
    return tuple(result_cell(label, result) for label, result in named_results(out, name))


def result_cell(label: str, result: dict[str, Any]) -> ResultCell:
    """A finished cell as tables take it, under the name of its column."""
    cell = result["cell"]
    return ResultCell(
        method=label,
        dataset=cell["dataset"],
        shots=cell["shots"],
        seed=cell["settings"]["seed"],
        metrics=result["metrics"],
        backbone=cell["settings"]["encoder"]["name"],
        counts=(result["counts"]["abnormal"], result["counts"]["normal"]),
        cell=cell,
        fitted_on=result.get("support_images_in_test", 0),  # not in older results
        without_mask=result.get("without_mask", 0),
        support=result.get("support"),
    )
