import json

import pytest

from recap.bench.cells import Cell, parse_numbers, plan_cells
from recap.bench.kept import is_done, read_results, result_file, write_result
from recap.errors import InputError, SettingsError
from recap.methods.registry import resolve_settings


def cell(**values):
    settings = resolve_settings(**values)
    return Cell("recap", "Brain", 4, settings)


def test_every_setting_makes_another_cell():
    names = {cell().name, cell(seed=1).name, cell(model={"eta": 0.1}).name}
    names |= {Cell("recap", "Brain", 4, resolve_settings(), draw=1).name}
    names |= {Cell("recap", "Brain", 4, resolve_settings(), exclude="ab").name}
    assert len(names) == 5
    assert cell().name == cell().name
    assert cell().name.startswith("recap/Brain/4-shot/seed-0-")


def test_fits_are_shared_whatever_the_weight_of_the_memory():
    weights = {"weight": 0.1}
    assert cell(memory=weights).fit_name == cell().fit_name
    assert cell(memory=weights).name != cell().name
    assert cell(model={"eta": 0.1}).fit_name != cell().fit_name


def test_a_grid_leaves_out_what_cannot_be_fitted():
    settings = resolve_settings(seed=7)
    cells = plan_cells(
        dict.fromkeys(["recap", "nearest"], settings), ["Brain", "Chest"], [0, 4], [0, 1]
    )
    kinds = {(c.method, c.shots) for c in cells}
    assert kinds == {("recap", 0), ("recap", 4), ("nearest", 4)}
    assert len(cells) == 12
    assert {c.settings.seed for c in cells} == {0, 1}
    assert {c.draw for c in cells} == {0}
    assert [c.shots for c in cells][-4:] == [0] * 4  # the long ones come last


def test_draws_follow_the_seed_only_when_asked():
    cells = plan_cells(
        dict.fromkeys(["recap"], resolve_settings()), ["Brain"], [4], [0, 3], draw_by_seed=True
    )
    assert [(c.settings.seed, c.draw) for c in cells] == [(0, 0), (3, 3)]


def test_cells_on_pools_do_not_learn_from_test_splits():
    settings = {"recap": resolve_settings(training={"source_split": "test"})}
    with pytest.raises(SettingsError, match=r"--on pool .* training\.source_split = .test."):
        plan_cells(settings, ["Brain"], [0, 4], [0], on="pool")
    assert len(plan_cells(settings, ["Brain"], [4], [0], on="pool")) == 1  # learns from no source
    assert len(plan_cells(settings, ["Brain"], [0], [0])) == 1


def test_results_are_kept_and_damaged_ones_run_again(tmp_path):
    assert not is_done(tmp_path, cell())
    with pytest.raises(InputError, match="no results"):
        list(read_results(tmp_path))
    write_result(tmp_path, cell(), {"metrics": {"image_auroc": 0.5}})
    assert is_done(tmp_path, cell())
    assert not is_done(tmp_path, cell(seed=1))
    (result,) = read_results(tmp_path)
    assert result["cell"] == json.loads(json.dumps(cell().as_json()))
    file = result_file(tmp_path, cell())
    file.write_text(file.read_text()[:-30])
    assert not is_done(tmp_path, cell())
    with pytest.raises(InputError, match="damaged"):
        list(read_results(tmp_path))


@pytest.mark.parametrize(
    ("text", "numbers"), [("0,4,16", [0, 4, 16]), ("0-4", [0, 1, 2, 3, 4]), ("2, 0-2", [2, 0, 1])]
)
def test_numbers(text, numbers):
    assert parse_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "0.5"])
def test_wrong_numbers(text):
    with pytest.raises(InputError, match="not a list of numbers"):
        parse_numbers(text)
