import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from recap.bench.cells import Cell, plan_cells
from recap.bench.kept import result_file, write_result
from recap.bench.results import definition, experiment_file, read_experiment, register
from recap.bench.tables import collect
from recap.errors import InputError
from recap.methods.registry import resolve_settings

COUNTS = {"abnormal": 3, "normal": 3}


def cell(method="recap", shots=4, **values):
    return Cell(method, "Brain", shots, resolve_settings(**values))


def finish(out, cell, auroc=0.5):
    write_result(out, cell, {"metrics": {"image_auroc": auroc}, "counts": COUNTS})


def base(**values):
    return {"settings": resolve_settings(**values).model_dump(mode="json"), "exclude": ""}


def labels(out, name):
    return [(label, r["cell"]["settings"]["seed"]) for label, r in read_experiment(out, name)]


def test_cells_are_added_under_their_labels(tmp_path):
    register(tmp_path, "conditioning", {"gated": [cell()], "static": []})
    register(tmp_path, "conditioning", {"gated": [cell(), cell(seed=1)]})
    assert definition(tmp_path, "conditioning") == {
        "experiment": "conditioning",
        "variants": {"gated": [cell().name, cell(seed=1).name], "static": []},
    }
    assert read_experiment(tmp_path, "conditioning") == []
    finish(tmp_path, cell(seed=1))
    assert labels(tmp_path, "conditioning") == [("gated", 1)]


def test_runs_that_begin_at_once_lose_none_of_their_cells(tmp_path):
    cells = [cell(seed=seed) for seed in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: register(tmp_path, "grid", {"recap": [one]}), cells))
    known = definition(tmp_path, "grid")["variants"]["recap"]
    assert sorted(known) == sorted(one.name for one in cells)


def test_experiments_share_cells(tmp_path):
    finish(tmp_path, cell())
    register(tmp_path, "conditioning", {"gated": [cell()]})
    register(tmp_path, "components", {"recap": [cell()]})
    assert labels(tmp_path, "conditioning") == [("gated", 0)]
    assert labels(tmp_path, "components") == [("recap", 0)]


def test_a_folder_without_experiments_is_one_grid(tmp_path):
    with pytest.raises(InputError, match="no results"):
        read_experiment(tmp_path, "grid")
    finish(tmp_path, cell())
    finish(tmp_path, cell("nearest"))
    before = labels(tmp_path, "grid")
    assert sorted(before) == [("nearest", 0), ("recap", 0)]
    assert read_experiment(tmp_path, "conditioning") == []
    # A study comes to stand beside it, and does not become a part of the grid.
    register(tmp_path, "conditioning", {"static": [cell(model={"conditioning": "static"})]})
    finish(tmp_path, cell(model={"conditioning": "static"}))
    assert labels(tmp_path, "grid") == before


def test_a_folder_with_a_study_alone_has_no_grid(tmp_path):
    register(tmp_path, "conditioning", {"gated": [cell()]})
    finish(tmp_path, cell())
    assert read_experiment(tmp_path, "grid") == []


def test_cells_of_other_settings_do_not_join_a_study(tmp_path):
    register(tmp_path, "conditioning", {"gated": [cell()]}, base())
    register(tmp_path, "conditioning", {"gated": [cell(seed=1)]}, base())
    other = {"training": {"epochs": 3}}
    with pytest.raises(InputError, match=r"training\.epochs = 20, not 3.*another --out"):
        register(tmp_path, "conditioning", {"gated": [cell(**other)]}, base(**other))
    with pytest.raises(InputError, match="exclude = '', not 'ab'"):
        register(tmp_path, "conditioning", {}, {**base(), "exclude": "ab"})
    assert definition(tmp_path, "conditioning")["variants"] == {
        "gated": [cell().name, cell(seed=1).name]
    }


def test_a_base_from_before_a_setting_came_still_fits(tmp_path):
    older = base()
    del older["settings"]["model"]["layer_fusion"]
    register(tmp_path, "conditioning", {"gated": [cell()]}, older)
    register(tmp_path, "conditioning", {"gated": [cell(seed=1)]}, base())
    with pytest.raises(InputError, match=r"model\.layer_fusion = 'learned', not 'uniform'"):
        register(tmp_path, "conditioning", {}, base(model={"layer_fusion": "uniform"}))


def test_damage_is_told(tmp_path):
    register(tmp_path, "conditioning", {"gated": [cell()]})
    finish(tmp_path, cell())
    file = result_file(tmp_path, cell())
    file.write_text(file.read_text()[:-30])
    with pytest.raises(InputError, match=r"seed-0.*damaged.*run again"):
        read_experiment(tmp_path, "conditioning")
    experiment_file(tmp_path, "conditioning").write_text("{")
    with pytest.raises(InputError, match=r"conditioning\.json.*damaged"):
        read_experiment(tmp_path, "conditioning")


def test_tables_get_each_experiment_under_its_labels(tmp_path):
    settings = resolve_settings()
    grid = plan_cells(dict.fromkeys(["recap", "nearest"], settings), ["Brain"], [4], [0, 1])
    by_method = {m: [c for c in grid if c.method == m] for m in ("recap", "nearest")}
    static = [cell(seed=s, model={"conditioning": "static"}) for s in (0, 1)]
    phikon = [cell(encoder={"name": "phikon"})]
    register(tmp_path, "grid", by_method)
    register(tmp_path, "conditioning", {"gated": by_method["recap"], "static": static})
    register(tmp_path, "components", {"recap": by_method["recap"], "no_conditioning": static})
    register(tmp_path, "backbones", {"phikon": phikon})
    for one in [*grid, *static, *phikon]:
        finish(tmp_path, one)
    results = collect(tmp_path)
    assert [r.method for r in results.runs] == ["recap"] * 2 + ["nearest"] * 2
    assert [r.method for r in results.conditioning] == ["gated"] * 2 + ["static"] * 2
    assert [r.method for r in results.components] == ["recap"] * 2 + ["no_conditioning"] * 2
    assert [r.backbone for r in results.backbones] == ["phikon"]
    assert {r.counts for r in results.runs} == {(3, 3)}
    assert json.loads(experiment_file(tmp_path, "grid").read_text())["experiment"] == "grid"
