"""From finished cells to the rows that tables are made of."""

from pathlib import Path
from typing import Any

from recap.benchmark.cells import MeasuredOn
from recap.benchmark.experiments import GRID, POOL, measured_on, read_experiment, with_presets
from recap.benchmark.table_cells import ResultCell
from recap.benchmark.tables import Results
from recap.errors import InputError


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
            f"{out}`."
        )
    return tuple(found)


def experiment_cells(out: Path, name: str) -> tuple[ResultCell, ...]:
    """The finished cells of an experiment, each named after its variant."""
    return tuple(result_cell(label, result) for label, result in named_results(out, name))


def named_results(out: Path, name: str) -> list[tuple[str, dict[str, Any]]]:
    """The finished cells of an experiment and the names of their columns."""
    found = read_experiment(out, name)
    if name not in (GRID, POOL):
        return found
    labels = with_presets([(label, result["cell"]) for label, result in found])
    return [(label, result) for label, (_, result) in zip(labels, found, strict=True)]


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
