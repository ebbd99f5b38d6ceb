import json

import pytest

from quick_encoder import encoder_read_once  # noqa: F401
from recap.benchmark import run_cell as module
from recap.benchmark.cells import plan_cells, read_results, result_file
from recap.benchmark.collect import result_cells
from recap.benchmark.run_cell import measure
from recap.benchmark.runner import run_cells
from recap.benchmark.tables import Results, paper_tables
from recap.config import resolve_settings
from recap.data import draw_support, write_phantoms
from recap.errors import InputError
from recap.metrics import auroc
from recap.scoring.evaluate import evaluate
from recap.training.fewshot import fit_few_shot
from recap.training.support import load_support


@pytest.fixture(scope="module")
def domains(tmp_path_factory):
    root = tmp_path_factory.mktemp("phantoms")
    return write_phantoms(root, pool=3, test=3, size_px=70, domains=["Brain", "Chest"])


@pytest.fixture(scope="module")
def settings(tiny_folder):
    encoder = {"name": str(tiny_folder), "input_px": 70}
    return resolve_settings(encoder=encoder, training={"epochs": 1, "augment": False})


@pytest.fixture
def cells(settings):
    return plan_cells(["recap", "nearest"], ["Brain", "Chest"], [0, 2], [0, 1], settings)


def contents(out):
    """Results without what a clock says."""
    results = [dict(result) for result in read_results(out)]
    return [{k: v for k, v in result.items() if k != "seconds"} for result in results]


def test_every_cell_runs_once(cells, domains, tmp_path, monkeypatch):
    assert run_cells(cells, domains, tmp_path) == {}
    first = contents(tmp_path)
    assert len(first) == len(cells) == 12
    runs = []
    monkeypatch.setattr(module, "run_cell", lambda *given: runs.append(given))
    steps = []
    run_cells(cells, domains, tmp_path, progress=lambda *step: steps.append(step))
    assert runs == []
    assert steps == [(12, 12, "")]
    assert not (tmp_path / "work").exists() or not any((tmp_path / "work").rglob("*.*"))


def test_an_interrupted_run_gives_what_an_undisturbed_one_gives(cells, domains, tmp_path):
    few = cells[:4]
    run_cells(few, domains, tmp_path / "whole")

    def stop(done, total, name):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells(few, domains, tmp_path / "cut", progress=stop)
    assert len(list(read_results(tmp_path / "cut"))) == 2
    broken = result_file(tmp_path / "cut", few[0])
    broken.write_text(broken.read_text()[:100])
    assert run_cells(few, domains, tmp_path / "cut") == {}
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_cell_is_what_the_commands_give(cells, domains, tmp_path):
    cell = next(c for c in cells if (c.method, c.dataset, c.shots) == ("recap", "Brain", 2))
    run_cells([cell], domains, tmp_path)
    (result,) = read_results(tmp_path)
    support = draw_support(domains[0], 2)
    samples = load_support([*support.normal, *support.abnormal])
    detector = fit_few_shot(samples, cell.settings)
    expected = evaluate(detector, domains[0])
    for level in ("image", "pixel"):
        for name, value in expected[level].items():
            assert result["metrics"][f"{level}_{name}"] == pytest.approx(value)
    assert result["fingerprint"] == detector.card.fingerprint
    rows = result["images"]
    assert auroc([r["score"] for r in rows], [r["abnormal"] for r in rows]) == pytest.approx(
        expected["image"]["auroc"]
    )
    assert result["counts"] == {"abnormal": 3, "normal": 3}
    assert len(result["drift"]["normal"]) == 2  # branches


def test_images_are_encoded_once_for_the_whole_grid(cells, domains, tmp_path, monkeypatch):
    encoded = []
    original = module.TapsMemo.taps

    def counted(self, encoder, pixels):
        before = self.encoded
        taps = original(self, encoder, pixels)
        encoded.append(self.encoded - before)
        return taps

    monkeypatch.setattr(module.TapsMemo, "taps", counted)
    run_cells(cells, domains, tmp_path)
    # 12 images in the pools and 12 in the test splits, however many cells look at them.
    assert sum(encoded) == 24


def test_a_failing_cell_costs_only_itself(cells, domains, tmp_path, monkeypatch):
    def failing(detector, samples):
        if samples[0].domain == "Chest":
            raise InputError("chest.png: is damaged.")
        return measure(detector, samples)

    monkeypatch.setattr(module, "measure", failing)
    failed = run_cells(cells[:4], domains, tmp_path)
    assert len(list(read_results(tmp_path))) == 4 - len(failed)
    assert set(failed.values()) == {"chest.png: is damaged."}
    monkeypatch.undo()
    assert run_cells(cells[:4], domains, tmp_path) == {}


@pytest.mark.slow
def test_processes_give_the_same(cells, domains, tmp_path):
    assert run_cells(cells[:4], domains, tmp_path / "one") == {}
    assert run_cells(cells[:4], domains, tmp_path / "two", jobs=2) == {}
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_results_fill_the_tables(cells, domains, tmp_path):
    run_cells(cells, domains, tmp_path)
    rows = result_cells(read_results(tmp_path))
    assert len(rows) == 12
    tables = {table.key: table for table in paper_tables(Results(runs=rows))}
    ours = [cell.ours for row in tables["few-shot-2"].rows for cell in row.cells if cell.ours]
    assert ours
    assert all(number.seeds == 2 for number in ours)
    assert json.dumps([row.method for row in rows])
