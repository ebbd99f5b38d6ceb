import json
import shutil
from dataclasses import replace

import pytest
import torch

from quick_encoder import encoder_read_once  # noqa: F401
from recap.bench import run_cell as module
from recap.bench import supports
from recap.bench.cells import Cell, plan_cells
from recap.bench.kept import read_results, result_file, write_result
from recap.bench.run import Silent, run_cells
from recap.bench.run_cell import result_of, run_cell
from recap.bench.tables import Results, paper_tables, result_cell
from recap.data import draw_support, write_phantoms
from recap.data.support import load_support
from recap.errors import InputError, SettingsError
from recap.methods.registry import settings_from_dict
from recap.metrics import auroc
from recap.scoring.evaluate import evaluate
from recap.scoring.fit import fit_support


@pytest.fixture(scope="module")
def cells(settings):
    return plan_cells(
        dict.fromkeys(["recap", "nearest"], settings), ["Brain", "Chest"], [0, 2], [0, 1]
    )


def contents(out):
    """Results without what a clock says, and by how many threads."""
    return [{**result, "seconds": None, "threads": None} for result in read_results(out)]


@pytest.fixture(scope="module")
def finished(cells, domains, tmp_path_factory):
    """The whole grid, run once."""
    out = tmp_path_factory.mktemp("runs")
    assert run_cells(cells, domains, out) == {}
    return out


class Notes(Silent):
    def __init__(self):
        self.present, self.started_, self.outcomes = [], [], []

    def planned(self, cells, present):
        self.present = [outcome.cell.name for outcome in present]

    def started(self, cell):
        self.started_.append(cell.name)

    def finished(self, outcome):
        self.outcomes.append(outcome)


def json_name(result):
    return json.dumps(result["cell"], sort_keys=True)


def test_every_cell_runs_once(cells, domains, finished, monkeypatch):
    assert len(contents(finished)) == len(cells) == 12
    runs, notes = [], Notes()
    monkeypatch.setattr(module, "run_cell", lambda *given: runs.append(given))
    run_cells(cells, domains, finished, watch=notes)
    assert runs == notes.started_ == notes.outcomes == []
    assert len(notes.present) == 12
    assert not any(path.is_file() for path in (finished / "work").rglob("*"))


def test_images_are_encoded_once_for_the_whole_grid(finished):
    """12 images in the pools, 12 in the test splits and, for each of two seeds, lesions made up on
    2 + 2 normal images, however many cells look at them."""
    assert len(list((finished / "taps").rglob("*.npy"))) == 32


def test_an_interrupted_run_gives_what_an_undisturbed_one_gives(cells, domains, finished, tmp_path):
    few = cells[:4]

    class Stop(Notes):
        def finished(self, outcome):
            super().finished(outcome)
            if len(self.outcomes) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells(few, domains, tmp_path / "cut", watch=Stop())
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
    detector = fit_support(samples, cell.settings)
    expected = evaluate(detector, domains[0])
    for level in ("image", "pixel"):
        for name, value in expected[level].items():
            assert result["metrics"][f"{level}_{name}"] == pytest.approx(value)
    assert result["pixel_error_bound"] == expected["pixel_error_bound"] == 0
    assert result["fingerprint"] == detector.card.fingerprint
    rows = result["images"]
    assert auroc([r["score"] for r in rows], [r["abnormal"] for r in rows]) == pytest.approx(
        expected["image"]["auroc"]
    )
    assert result["counts"] == {"abnormal": 3, "normal": 3}
    assert (result["without_mask"], result["empty_masks"]) == (0, [])
    assert result["support_images_in_test"] == 0
    assert len(result["drift"]["normal"]) == 2  # branches


def test_a_pool_that_the_support_uses_up_is_said_before_fitting(domains, settings, tmp_path):
    (cell,) = plan_cells({"recap": settings}, ["Brain"], [3], [0], on="pool")
    with pytest.raises(InputError, match=r"Brain_AD: 3 shots leave 0 images .* fewer --shots"):
        run_cell(cell, domains, tmp_path)
    assert not (tmp_path / "work").exists()


def test_a_test_split_of_one_class_is_said_before_fitting(settings, tmp_path, monkeypatch):
    (domain,) = write_phantoms(tmp_path, pool=2, test=1, size_px=70, domains=["Brain"])
    shutil.rmtree(domain.root / "test" / "good")
    monkeypatch.setattr(module, "_fit", lambda *given: pytest.fail("was fitted"))
    with pytest.raises(InputError, match=r"Brain_AD/test/good: no normal test images"):
        run_cell(Cell("recap", "Brain", 2, settings), [domain], tmp_path)


def test_results_on_other_test_images_are_not_taken_for_done(cells, domains, finished, tmp_path):
    others = []
    for domain in domains:
        root = tmp_path / domain.root.name
        shutil.copytree(domain.root, root)
        others.append(replace(domain, root=root))
    assert run_cells(cells, others, finished) == {}
    (others[1].root / "test/good/img/test_002.png").unlink()
    with pytest.raises(InputError, match="was measured on 6 test images, which are not the 5 of"):
        run_cells(cells, others, finished)


def test_results_of_another_support_set_are_not_taken_for_done(settings, tmp_path):
    (domain,) = write_phantoms(tmp_path, pool=3, test=2, size_px=70, domains=["Brain"])
    cells = plan_cells({"nearest": settings}, ["Brain"], [2], [0, 1])
    assert run_cells(cells[:1], [domain], tmp_path / "out", share_heads=True) == {}
    (result,) = contents(tmp_path / "out")
    drawn = draw_support(domain, 2).normal
    paths = [f"valid/good/img/{sample.path.name}" for sample in drawn]
    assert result["support"] == {"normal": paths, "abnormal": []}
    drawn[0].path.unlink()
    with pytest.raises(InputError, match=f"fitted on a support set .*: {paths[0]} is not in today"):
        run_cells(cells, [domain], tmp_path / "out")
    result_file(tmp_path / "out", cells[0]).unlink()
    failed = run_cells(cells[:1], [domain], tmp_path / "out", share_heads=True)
    assert "was fitted on other support images than the pool gives now" in failed[cells[0].name]


def test_cells_on_pools_never_read_the_test_split(settings, tmp_path):
    """It is not even there."""
    domains = write_phantoms(tmp_path, pool=5, test=1, size_px=70, domains=["Brain", "Chest"])
    for domain in domains:
        shutil.rmtree(domain.root / "test")
    cells = plan_cells({"recap": settings}, ["Brain", "Chest"], [2], [0], True, on="pool")
    assert run_cells(cells, domains, tmp_path / "out") == {}
    assert all(len(result["images"]) == 6 for result in contents(tmp_path / "out"))
    # Figures show pictures and maps of the test split, which has files of the same names.
    assert not [
        *(tmp_path / "out" / "cells").rglob("*.npz"),
        *(tmp_path / "out").glob("examples/*"),
    ]


def test_work_left_by_another_version_is_begun_anew(cells, domains, finished, tmp_path):
    cell = next(c for c in cells if c.method == "recap" and c.shots == 2)
    work = tmp_path / "work" / cell.name
    work.mkdir(parents=True)
    (work / "fingerprint").write_text("of another version")
    assert run_cells([cell], domains, tmp_path) == {}
    (result,) = contents(tmp_path)
    assert result["images"] in [other["images"] for other in contents(finished)]
    assert not work.exists()


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


@pytest.fixture
def written(monkeypatch):
    """Cells that are not run: their result is one number; those with seed 1 write none."""

    def write(cell, domains, out, exclude, share_heads, support):
        if cell.settings.seed != 1:
            write_result(out, cell, {"metrics": {"image_auroc": 0.75}})

    monkeypatch.setattr(module, "run_cell", write)


def test_a_watcher_is_told_everything(cells, domains, tmp_path, written):
    four, notes = cells[:4], Notes()
    assert [cell.settings.seed for cell in four] == [0, 0, 0, 0]
    run_cells(four[:1], domains, tmp_path)
    assert run_cells(four, domains, tmp_path, watch=notes) == {}
    assert notes.present == [four[0].name]
    assert notes.started_ == [cell.name for cell in four[1:]]
    assert [outcome.auroc for outcome in notes.outcomes] == [0.75] * 3


def test_a_result_that_does_not_arrive_is_a_failure(cells, domains, tmp_path, written):
    lost = next(cell for cell in cells if cell.settings.seed == 1)
    notes = Notes()
    failed = run_cells([lost], domains, tmp_path, watch=notes)
    assert "All machines must share this folder" in failed[lost.name]
    assert notes.outcomes[0].problem == failed[lost.name]


def test_cells_of_one_fit_wait_for_it_and_fail_with_it(settings, domains, tmp_path, monkeypatch):
    tree = settings.model_dump(mode="json")
    weights = (0.1, 0.2, 0.3)
    trees = [{**tree, "memory": {**tree["memory"], "weight": weight}} for weight in weights]
    names = ["Brain", "Chest"]
    cells = [Cell("recap", n, 2, settings_from_dict(t)) for t in trees for n in names]
    order = []

    def fit_or_load(cell, domains, out, exclude, share_heads, support):
        assert len(support.normal) == 2
        assert share_heads
        order.append((cell.dataset, (out / "heads" / cell.fit_name).exists()))
        if cell.dataset == "Chest":
            raise InputError("chest.png: is damaged.")
        (out / "heads" / cell.fit_name).mkdir(parents=True, exist_ok=True)
        write_result(out, cell, {"metrics": {"image_auroc": 0.75}})

    monkeypatch.setattr(module, "run_cell", fit_or_load)
    notes = Notes()
    failed = run_cells(cells, domains, tmp_path, share_heads=True, watch=notes)
    assert order == [("Brain", False), ("Chest", False), ("Brain", True), ("Brain", True)]
    assert set(failed) == {cell.name for cell in cells if cell.dataset == "Chest"}
    assert set(failed.values()) == {"chest.png: is damaged."}
    assert len(notes.outcomes) == 6


def test_a_support_set_is_drawn_once_for_all_cells(settings, domains, tmp_path, monkeypatch):
    draws, given, draw_support = [], [], supports.draw_support

    def draw(*arguments, **options):
        draws.append(arguments)
        return draw_support(*arguments, **options)

    monkeypatch.setattr(supports, "draw_support", draw)
    monkeypatch.setattr(module, "run_cell", lambda *arguments: given.append(arguments[-1]))
    cells = plan_cells(dict.fromkeys(["recap", "nearest"], settings), ["Brain"], [2], [0, 1, 2])
    run_cells(cells, domains, tmp_path)
    assert len(given) == 6
    # `nearest` needs no abnormal image in the pool: that is another draw.
    assert len(draws) == len({id(support) for support in given}) == 2
    assert all(sample.path.is_absolute() for support in given for sample in support.normal)


def test_a_draw_that_fails_costs_its_own_cells_alone(settings, domains, tmp_path):
    cells = plan_cells({"recap": settings}, ["Brain"], [2, 50], [0])
    failed = run_cells(cells, domains, tmp_path)
    assert list(failed) == [cell.name for cell in cells if cell.shots == 50]


@pytest.mark.parametrize("options", [{"engine": "slurm"}, {"ray_address": "auto"}])
def test_wrong_engines_are_told(cells, domains, tmp_path, options):
    with pytest.raises(SettingsError, match="--engine"):
        run_cells(cells, domains, tmp_path, **options)


@pytest.mark.slow
def test_processes_give_the_same(cells, domains, finished, tmp_path):
    assert run_cells(cells[:4], domains, tmp_path, jobs=2) == {}
    expected = {json_name(result): result for result in contents(finished)}
    found = contents(tmp_path)
    assert len(found) == 4
    assert found == [expected[json_name(result)] for result in found]
    share = max(1, torch.get_num_threads() // 2)
    assert [result["threads"] for result in read_results(tmp_path)] == [share] * 4


def test_results_fill_the_tables(finished):
    rows = [result_cell(r["cell"]["method"], r) for r in read_results(finished)]
    assert len(rows) == 12
    tables = {table.key: table for table in paper_tables(Results(runs=rows))}
    ours = [cell.ours for row in tables["few-shot-2"].rows for cell in row.cells if cell.ours]
    assert ours
    assert all(number.seeds == 2 for number in ours)
