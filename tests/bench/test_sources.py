"""Zero-shot cells are told apart by what they learn from."""

import shutil

import pytest

from recap.bench.cells import Cell, plan_cells, with_sources
from recap.bench.kept import read_results
from recap.bench.results import definition
from recap.bench.run import run_cells
from recap.bench.studies import plan_study, run_study
from recap.data import find_domains, write_phantoms
from recap.methods.registry import resolve_settings


@pytest.fixture
def root(tmp_path):
    write_phantoms(tmp_path / "data", pool=3, test=2, size_px=70, domains=["Brain", "Liver"])
    return tmp_path / "data"


def zero_shot(root, **training):
    (cell,) = plan_cells({"recap": resolve_settings(training=training)}, ["Brain"], [0], [0])
    return with_sources([cell], find_domains(root))[0]


def test_another_source_makes_another_cell_and_another_head(root):
    one = zero_shot(root)
    assert list(one.as_json()["sources"]) == ["Liver"]
    write_phantoms(root, pool=3, test=2, size_px=70, domains=["Chest"])
    two = zero_shot(root)
    assert list(two.as_json()["sources"]) == ["Liver", "Chest"]
    assert two.name != one.name
    assert two.fit_name != one.fit_name
    shutil.rmtree(root / "Chest_AD")
    assert zero_shot(root) == one


@pytest.mark.parametrize("split", ["pool", "test"])
def test_the_files_of_the_split_that_is_learnt_from_count(root, split):
    before = zero_shot(root, source_split=split)
    for folder, counts in (("valid", split == "pool"), ("test", split == "test")):
        image = next((root / "Liver_AD" / folder / "good" / "img").iterdir())
        moved = image.rename(root / image.name)
        assert (zero_shot(root, source_split=split).name != before.name) == counts
        moved.rename(image)
    assert zero_shot(root, source_split=split).name == before.name


def test_few_shot_cells_keep_the_names_that_they_always_had(root):
    cell = Cell("recap", "Brain", 4, resolve_settings())
    assert with_sources([cell], find_domains(root)) == [cell]
    assert "sources" not in cell.as_json()
    assert cell.name == "recap/Brain/4-shot/seed-0-ea2a3044e9bd"


def test_a_run_does_not_take_the_result_of_fewer_sources(root, tiny_folder, tmp_path):
    encoder = {"name": str(tiny_folder), "input_px": 70}
    settings = resolve_settings(encoder=encoder, training={"epochs": 1})
    cells = plan_cells({"recap": settings}, ["Brain"], [0], [0])
    study = plan_study("sweep-lambda", settings, ["Brain"], [0], [0], values=["0.5"])
    write_phantoms(root, pool=3, test=2, size_px=70, domains=["Chest"])
    brain, liver, chest = find_domains(root)
    for domains in ([brain, liver], [brain, liver, chest]):
        assert run_cells(cells, domains, tmp_path / "runs") == {}
        assert run_study(study, domains, tmp_path / "runs") == {}
    found = [sorted(result["cell"]["sources"]) for result in read_results(tmp_path / "runs")]
    assert sorted(found) == [["Chest", "Liver"], ["Liver"]]
    kept = definition(tmp_path / "runs", "sweep-lambda")
    files = {p.stem for p in (tmp_path / "runs" / "cells").rglob("*.json")}
    assert {name.split("/")[-1] for name in kept["variants"]["0.5"]} == files
