import json

import pytest

from quick_encoder import encoder_read_once  # noqa: F401
from recap.benchmark import run_cell as module
from recap.benchmark.cells import plan_cells, read_results, result_file
from recap.benchmark.collect import result_cells
from recap.benchmark.run_cell import result_of
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


@pytest.fixture(scope="module")
def cells(settings):
    return plan_cells(["recap", "nearest"], ["Brain", "Chest"], [0, 2], [0, 1], settings)


def contents(out):
    """Results without what a clock says."""
    results = [dict(result) for result in read_results(out)]
    return [{k: v for k, v in result.items() if k != "seconds"} for result in results]


@pytest.fixture(scope="module")
def finished(cells, domains, tmp_path_factory):
    """The whole grid, run once."""
    out = tmp_path_factory.mktemp("runs")
    assert run_cells(cells, domains, out) == {}
    return out


def json_name(result):
    return json.dumps(result["cell"], sort_keys=True)


def test_every_cell_runs_once(cells, domains, finished, monkeypatch):
    assert len(contents(finished)) == len(cells) == 12
    runs, steps = [], []
    monkeypatch.setattr(module, "run_cell", lambda *given: runs.append(given))
    run_cells(cells, domains, finished, progress=lambda *step: steps.append(step))
    assert runs == []
    assert steps == [(12, 12, "")]
    assert not any(path.is_file() for path in (finished / "work").rglob("*"))


def test_images_are_encoded_once_for_the_whole_grid(finished):
    """12 images in the pools and 12 in the test splits, however many cells look at them."""
    assert len(list((finished / "taps").rglob("*.npy"))) == 24


def test_an_interrupted_run_gives_what_an_undisturbed_one_gives(cells, domains, finished, tmp_path):
    few = cells[:4]

    def stop(done, total, name):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells(few, domains, tmp_path / "cut", progress=stop)
    assert len(list(read_results(tmp_path / "cut"))) == 2
    broken = result_file(tmp_path / "cut", few[0])
    broken.write_text(broken.read_text()[:100])
    assert run_cells(few, domains, tmp_path / "cut") == {}
    expected = {json_name(result): result for result in contents(finished)}
    resumed = contents(tmp_path / "cut")
    assert resumed == [expected[json_name(result)] for result in resumed]
    assert len(resumed) == 4


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


def test_a_failing_cell_costs_only_itself(cells, domains, tmp_path, monkeypatch):
    def failing(detector, samples, measured):
        if samples[0].domain == "Chest":
            raise InputError("chest.png: is damaged.")
        return result_of(detector, samples, measured)

    monkeypatch.setattr(module, "result_of", failing)
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


def test_results_fill_the_tables(finished):
    rows = result_cells(read_results(finished))
    assert len(rows) == 12
    tables = {table.key: table for table in paper_tables(Results(runs=rows))}
    ours = [cell.ours for row in tables["few-shot-2"].rows for cell in row.cells if cell.ours]
    assert ours
    assert all(number.seeds == 2 for number in ours)
