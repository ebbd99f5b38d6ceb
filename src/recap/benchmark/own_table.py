"""Our results alone, all methods, shots and data sets in one table; nothing published."""

from collections.abc import Iterable
from dataclasses import replace

from recap.benchmark.caveats import caveats_for, extension_note
from recap.benchmark.experiments import measured_on
from recap.benchmark.table_cells import CellSource, Key, ResultCell, cell_source
from recap.benchmark.table_model import Column, Label, Row, Table, rank_across
from recap.benchmark.tables import LEVEL_NAMES, METRIC_NAMES, METRICS


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
