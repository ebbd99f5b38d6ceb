import pytest

from quick_encoder import encoder_read_once  # noqa: F401
from recap.bench import run_cell as module
from recap.bench.cells import plan_cells
from recap.bench.kept import is_done, read_results, result_file
from recap.bench.results import definition, read_experiment
from recap.bench.run import Silent, run_cells
from recap.bench.studies import (
    ENCODERS,
    plan_study,
    present_encoders,
    reference_of,
    run_study,
    value_of,
    variants_of,
)
from recap.bench.table_cells import ALIASES
from recap.errors import InputError, SettingsError, WeightsError
from recap.methods.registry import resolve_settings

NAMES = (
    "components", "conditioning", "backbones",
    "sweep-eta", "sweep-topk", "sweep-lambda", "sweep-delta-sep",
)  # fmt: skip


def numbers(out):
    """Results without what a clock says, and without the name of the fit."""
    return {
        str(r["cell"]): {k: v for k, v in r.items() if k not in ("seconds", "fingerprint")}
        for r in read_results(out)
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_the_settings_themselves(name):
    settings = resolve_settings()
    variants = variants_of(name, settings)
    assert variants[reference_of(name, settings)] == settings
    assert len(variants) == len({v.model_dump_json() for v in variants.values()}) > 3


def test_what_the_variants_change():
    settings = resolve_settings("paper", training={"epochs": 7})
    parts = variants_of("components", settings)
    assert parts["no_memory"].memory.weight == 0
    assert parts["no_conditioning"].model.conditioning == "static"
    assert parts["no_layer_fusion"].model.layer_fusion == "uniform"
    conditioning = variants_of("conditioning", settings)
    assert all(v.model.conditioning == label for label, v in conditioning.items())
    assert (set(parts) - {"recap"}) | set(conditioning) <= set(ALIASES)
    encoders = variants_of("backbones", settings)
    assert [v.encoder.name for v in encoders.values()] == list(encoders)
    assert set(encoders) == set(ENCODERS)
    assert {v.model.eta for v in variants_of("sweep-eta", settings).values()} == {
        0.01, 0.025, 0.05, 0.1, 0.2,
    }  # fmt: skip
    pairs = variants_of("sweep-delta-sep", settings).values()
    found = {(v.training.separation_margin, v.training.separation_weight) for v in pairs}
    assert found == {(margin, weight) for margin in (-0.5, 0, 0.5) for weight in (0.1, 1)}
    assert all(v.training.epochs == 7 and v.model.write_back for v in pairs)


def test_values_can_be_given_and_the_reference_joins_them():
    settings = resolve_settings()
    top = variants_of("sweep-topk", settings, ["0.3", " 1"])
    assert {label: v.model.top_k for label, v in top.items()} == {"0.1": 0.1, "0.3": 0.3, "1": 1.0}
    assert value_of("sweep-topk", "0.3") == 0.3
    assert value_of("conditioning", "gated") is None
    assert list(variants_of("backbones", settings, [])) == ["dinov2-small"]
    pairs = variants_of("sweep-delta-sep", settings, ["0.2:3"])
    assert list(pairs) == ["δ = 0, λ_sep = 0.1", "δ = 0.2, λ_sep = 3"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sweep-eta", "small", "'small' is not a value. Write numbers"),
        ("sweep-eta", "-1", "model.eta = -1"),
        ("sweep-eta", "nan", "model.eta"),
        ("sweep-delta-sep", "0.5", "'0.5' is not a value. Write pairs"),
        ("sweep-delta-sep", "0:a", "'a' is not a value. Write pairs"),
    ],
)
def test_wrong_values_are_told(name, value, message):
    with pytest.raises(SettingsError, match=message):
        variants_of(name, resolve_settings(), [value])


def test_a_study_has_the_same_cells_as_a_grid():
    settings = resolve_settings()
    study = plan_study("conditioning", settings, ["Brain", "Chest"], [0, 4], [0, 1])
    assert study.variants["gated"] == plan_cells(
        {"recap": settings}, ["Brain", "Chest"], [0, 4], [0, 1]
    )
    order = [(c.shots, c.settings.seed) for c in study.cells]
    assert order == [(4, 0)] * 10 + [(4, 1)] * 10 + [(0, 0)] * 10 + [(0, 1)] * 10
    with pytest.raises(InputError, match="Give --shots of 1 or more"):
        plan_study("conditioning", settings, ["Brain"], [], [0])


def test_variants_of_the_same_settings_have_one_cell():
    """Where one setting is changed, putting it back and putting all back is the same."""
    settings = resolve_settings("fast", model={"eta": 0.1})
    study = plan_study("recipe", settings, ["Brain"], [4], [0, 1])
    assert list(study.variants) == ["all of it", "model.eta = 0.05", "none of it"]
    names = [cell.name for cell in study.cells]
    assert len(names) == len(set(names)) == 4
    assert {cell.name for own in study.variants.values() for cell in own} == set(names)


def test_encoders_that_are_not_here_are_skipped(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    tiny = settings.encoder.name
    present, skipped = present_encoders([tiny, "rad-dino"], settings)
    assert present == [tiny]
    assert len(skipped) == 1
    assert skipped[0].startswith("rad-dino is skipped.")
    assert "recap weights pull rad-dino" in skipped[0]
    with pytest.raises(WeightsError, match="No encoder is called"):
        present_encoders(["dinov2-smal"], settings)
    random = resolve_settings(encoder={"random_weights": True})
    assert present_encoders(ENCODERS, random) == (list(ENCODERS), [])


class Recorder(Silent):
    def __init__(self):
        self.plans, self.ends = [], []

    def planned(self, cells, present):
        self.plans.append((len(cells), len(present)))

    def finished(self, outcome):
        self.ends.append((outcome.cell.settings.memory.weight, outcome.problem))


@pytest.fixture
def count_fits(monkeypatch):
    fits = []
    fit = module._fit

    def counted(cell, *rest):
        fits.append(cell)
        return fit(cell, *rest)

    monkeypatch.setattr(module, "_fit", counted)
    return fits


def test_lambda_is_fitted_once_and_gives_what_single_runs_give(
    settings, domains, tmp_path, count_fits
):
    study = plan_study("sweep-lambda", settings, ["Brain"], [2], [3], values=["0", "0.5", "1"])
    watch = Recorder()
    assert run_study(study, domains, tmp_path / "study", watch=watch) == {}
    assert watch.plans == [(3, 0)]
    assert len(watch.ends) == 3
    heads = [f for f in (tmp_path / "study" / "heads").iterdir() if f.is_dir()]
    assert len(heads) == 1
    assert len(count_fits) == 1
    assert run_cells(study.cells, domains, tmp_path / "alone") == {}
    assert numbers(tmp_path / "study") == numbers(tmp_path / "alone")
    scores = {
        label: [(r["score"], r["score_prototype"], r["score_memory"]) for r in result["images"]]
        for label, result in read_experiment(tmp_path / "study", "sweep-lambda")
    }
    for label, rows in scores.items():
        weight = float(label)
        for score, prototype, memory in rows:
            assert score == pytest.approx((1 - weight) * prototype + weight * memory, abs=1e-6)


def test_a_shared_fit_that_fails_is_tried_once(settings, domains, tmp_path, monkeypatch):
    fits = []

    def failing(cell, *rest):
        fits.append(cell)
        raise InputError("pool.png: is damaged.")

    monkeypatch.setattr(module, "_fit", failing)
    study = plan_study("sweep-lambda", settings, ["Brain"], [2], [0], values=["0", "0.5"])
    watch = Recorder()
    failed = run_study(study, domains, tmp_path, watch=watch)
    assert failed == {cell.name: "pool.png: is damaged." for cell in study.cells}
    assert len(fits) == 1
    assert [problem for _, problem in watch.ends] == ["pool.png: is damaged."] * 2
    monkeypatch.undo()
    assert run_study(study, domains, tmp_path) == {}


def test_what_the_grid_has_run_is_not_run_again(settings, domains, tmp_path, count_fits):
    grid = plan_cells(dict.fromkeys(["recap"], settings), ["Brain"], [2], [0])
    assert run_cells(grid, domains, tmp_path) == {}
    stamp = result_file(tmp_path, grid[0]).stat().st_mtime_ns
    study = plan_study("components", settings, ["Brain"], [2], [0])
    watch = Recorder()
    assert run_study(study, domains, tmp_path, watch=watch) == {}
    assert watch.plans == [(4, 1)]
    assert len(count_fits) == 4
    assert result_file(tmp_path, grid[0]).stat().st_mtime_ns == stamp
    assert [label for label, _ in read_experiment(tmp_path, "components")] == list(study.variants)
    assert definition(tmp_path, "grid")["variants"] == {"recap": [grid[0].name]}
    assert all(is_done(tmp_path, cell) for cell in study.cells)
    losses = {label: r["losses"] for label, r in read_experiment(tmp_path, "components")}
    assert losses["recap"] == losses["no_memory"]
