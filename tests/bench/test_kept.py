"""Results in a file each and results in one table are the same results."""

import csv
import gzip
import hashlib
import io
import json
import shutil
from pathlib import Path

import pytest

from made_runs import made_cell, write_cell, write_experiment
from recap._files import write_atomic
from recap.bench.compare import summarise_grid
from recap.bench.kept import (
    CELLS,
    PACKED,
    is_done,
    kept_names,
    pack,
    read_result,
    read_results,
    result_file,
    write_result,
)
from recap.bench.render import render
from recap.bench.results import GRID, read_experiment, register
from recap.bench.tables import collect, grid_cells, own_table, paper_tables
from recap.errors import InputError

RUNS = Path(__file__).parents[2] / "benchmarks" / "runs"
NUMBERS = "c443b5cbba629a63"
"""Of every number in the table of the results that are kept with the sources."""


def grid(out):
    cells = [
        made_cell(method, "Brain", shots, seed)
        for method in ("recap", "nearest")
        for shots in (2, 4)
        for seed in (0, 1)
    ]
    for cell in cells:
        write_cell(out, cell, maps=False)
    return cells


def every_table(out):
    """All that can be printed of a grid, as text."""
    tables = [own_table(grid_cells(out, "test")), *paper_tables(collect(out))]
    rows = json.dumps(summarise_grid(out, GRID, ["recap"], "nearest"))
    return [render(tables, "md"), render(tables, "csv"), render(tables, "latex"), rows]


@pytest.fixture
def packed(tmp_path):
    """A folder of eight cells, all in its table alone."""
    cells = grid(tmp_path)
    assert pack(tmp_path) == 8
    shutil.rmtree(tmp_path / CELLS)
    return cells


def test_tables_are_the_same_bytes(tmp_path):
    cells = grid(tmp_path)
    results, shown = list(read_results(tmp_path)), every_table(tmp_path)
    pack(tmp_path)
    first = (tmp_path / PACKED).read_bytes()
    shutil.rmtree(tmp_path / CELLS)
    assert list(read_results(tmp_path)) == results
    assert every_table(tmp_path) == shown
    assert all(is_done(tmp_path, cell) for cell in cells)
    pack(tmp_path)
    assert (tmp_path / PACKED).read_bytes() == first


def test_a_file_counts_before_the_table(packed, tmp_path):
    write_result(tmp_path, packed[0], {"metrics": {"image_auroc": 0.25}, "images": []})
    assert read_result(tmp_path, packed[0].name)["metrics"] == {"image_auroc": 0.25}
    assert len(kept_names(tmp_path)) == 8
    pack(tmp_path)
    shutil.rmtree(tmp_path / CELLS)
    assert read_result(tmp_path, packed[0].name)["metrics"] == {"image_auroc": 0.25}


def test_packed_cells_join_an_experiment(packed, tmp_path):
    write_experiment(tmp_path, "components", {"recap": packed[:2], "no_memory": packed[2:3]})
    labels = [label for label, _ in read_experiment(tmp_path, "components")]
    assert labels == ["recap", "recap", "no_memory"]


def test_the_cells_of_a_folder_become_its_grid(packed, tmp_path):
    register(tmp_path, "components", {"recap": packed[:1]})
    assert {label for label, _ in read_experiment(tmp_path, GRID)} == {"recap", "nearest"}


def test_a_damaged_table_is_told_and_nothing_is_run_again(packed, tmp_path):
    file = tmp_path / PACKED
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(InputError, match=PACKED):
        is_done(tmp_path, packed[0])


def test_a_result_without_images_is_not_packed(tmp_path):
    cell = made_cell("recap", "Brain", 2, 0)
    write_result(tmp_path, cell, {"metrics": {}})
    with pytest.raises(InputError, match=str(result_file(tmp_path, cell))):
        pack(tmp_path)
    assert not (tmp_path / PACKED).exists()


@pytest.mark.skipif(not (RUNS / PACKED).is_file(), reason="results are not in an sdist")
def test_kept_results_are_small_and_give_the_same_tables(tmp_path):
    assert (RUNS / PACKED).stat().st_size < 1_000_000
    for name in kept_names(RUNS):
        write_atomic(tmp_path / CELLS / f"{name}.json", json.dumps(read_result(RUNS, name)))
    alone, beside = own_table(grid_cells(RUNS, "test")), own_table(grid_cells(tmp_path, "test"))
    shown = render([alone], "csv")
    assert shown == render([beside], "csv")
    rows = [row for row in csv.reader(io.StringIO(shown)) if not row[0].startswith("# ")]
    digits = "\n".join(",".join(row[:7]) for row in rows)
    assert hashlib.sha256(digits.encode()).hexdigest()[:16] == NUMBERS


def test_the_table_can_be_read_without_recap(packed, tmp_path):
    line = json.loads(gzip.decompress((tmp_path / PACKED).read_bytes()).splitlines()[0])
    images = line["result"]["images"]
    assert len(images["file"]) == len(images["score"]) == 40
