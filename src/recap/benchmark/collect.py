"""From finished cells to the rows that tables are made of."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recap.benchmark.experiments import GRID, POOL, read_experiment
from recap.benchmark.table_cells import ResultCell
from recap.benchmark.tables import Results
from recap.config import DEFAULT_PRESET


def collect(out: Path) -> Results:
    """All finished cells of a folder by the experiment that they belong to."""
    return Results(
        runs=experiment_cells(out, GRID),
        components=experiment_cells(out, "components"),
        conditioning=experiment_cells(out, "conditioning"),
        backbones=experiment_cells(out, "backbones"),
    )


def collect_pool(out: Path) -> tuple[ResultCell, ...]:
    """The finished cells that were measured on the pools."""
    return experiment_cells(out, POOL)


def experiment_cells(out: Path, name: str) -> tuple[ResultCell, ...]:
    """The finished cells of an experiment, each named after its variant."""
    return tuple(_row(label, result) for label, result in named_results(out, name))


def named_results(out: Path, name: str) -> list[tuple[str, dict[str, Any]]]:
    """The finished cells of an experiment and the names of their columns.

    Where a grid has a method under several presets, all but the default one stand in its name.
    """
    found = read_experiment(out, name)
    presets: dict[str, set[str]] = {}
    for label, result in found:
        presets.setdefault(label, set()).add(result["cell"]["settings"]["preset"])

    def named(label: str, result: dict[str, Any]) -> str:
        own = result["cell"]["settings"]["preset"]
        several = name in (GRID, POOL) and len(presets[label]) > 1
        return f"{label} ({own})" if several and own != DEFAULT_PRESET else label

    return [(named(label, result), result) for label, result in found]


def result_cells(results: Iterable[dict[str, Any]]) -> list[ResultCell]:
    """Finished cells as table rows. Cells of one method with different settings never mix: two
    results for the same seed are refused by the tables, which name them."""
    return [_row(result["cell"]["method"], result) for result in results]


def _row(label: str, result: dict[str, Any]) -> ResultCell:
    cell = result["cell"]
    return ResultCell(
        method=label,
        dataset=cell["dataset"],
        shots=cell["shots"],
        seed=cell["settings"]["seed"],
        metrics=result["metrics"],
        backbone=cell["settings"]["encoder"]["name"],
        counts=(result["counts"]["abnormal"], result["counts"]["normal"]),
    )
