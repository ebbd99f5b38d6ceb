import json

import pytest

from recap.bench import studies
from recap.errors import InputError


@pytest.fixture
def bench(command, domains, tiny, tmp_path):
    def run(*arguments, datasets="Brain"):
        places = ("--data", domains[0].root.parent, "--out", tmp_path / "runs")
        what = ("--datasets", datasets, "--shots", "2", "--seeds", "0")
        return command("bench", *arguments, *places, *what, *tiny)

    return run


def test_ablate_prints_and_keeps_its_numbers(bench, command, tmp_path):
    runs = tmp_path / "runs"
    assert bench("run", "--methods", "recap", "--preset", "fast").code == 0
    result = bench("ablate", "conditioning")
    assert result.code == 0, result.err
    assert "Prototype conditioning: Brain, 2-shot, image AUROC (%)" in result.out
    assert "Prototype conditioning: Brain, 2-shot, pixel AUROC (%)" in result.out
    assert "Difference to gated" in result.out
    assert len(list((runs / "cells").rglob("*.json"))) == 5  # the grid's one is not run again
    rows = json.loads((runs / "experiments" / "conditioning-summary.json").read_text())
    assert [row["variant"] for row in rows[:5]] == [
        "gated", "bounded", "unbounded", "static", "tokens",
    ]  # fmt: skip
    # Without experiments, the variants would be two results for one seed of the grid.
    table = command("bench", "table", runs, "--format", "csv")
    assert table.code == 0, table.err
    ours = [line for line in table.out.splitlines() if line.startswith("conditioning,Unbounded")]
    assert any("2-shot Brain" in line for line in ours)


def test_sweep_takes_values(bench, tmp_path):
    result = bench("sweep", "lambda", "--values", "0,1")
    assert result.code == 0, result.err
    for label in ("0", "0.5", "1"):
        assert f"\n| {label} |" in result.out
    rows = json.loads((tmp_path / "runs/experiments/sweep-lambda-summary.json").read_text())
    assert [row["value"] for row in rows[:3]] == [0, 0.5, 1]
    assert bench("sweep", "eta", "--values", "0.1:2").code == 2


def test_backbones_skip_what_is_not_here(bench, tmp_path, monkeypatch, tiny):
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    result = bench("ablate", "backbones", "--encoders", "rad-dino")
    assert result.code == 0, result.err
    assert "rad-dino is skipped" in result.err
    rows = json.loads((tmp_path / "runs" / "experiments" / "backbones-summary.json").read_text())
    assert {row["variant"] for row in rows} == {tiny[1]}


def test_studies_take_support_lists_too(bench, tmp_path):
    for study in (("ablate", "components"), ("sweep", "topk")):
        result = bench(*study, "--supports", tmp_path)
        assert result.code == 2
        assert f"{tmp_path}/Brain/2-shot.txt: there is no such support list" in result.err


@pytest.mark.parametrize(
    ("file", "options", "preset"),
    [
        ("[model]\neta = 0.1\n", (), "fast"),
        ('preset = "paper"\n', (), "paper"),
        ("", ("--set", "preset = paper"), "paper"),
        ('preset = "paper"\n', ("--preset", "recap"), "recap"),
        ("", (), "fast"),
    ],
)
def test_a_study_is_of_the_published_model_unless_a_preset_is_named(
    bench, tmp_path, monkeypatch, file, options, preset
):
    planned = []

    def plan(name, settings, *_, **__):
        planned.append(settings)
        raise InputError("That will do.")

    monkeypatch.setattr(studies, "plan_study", plan)
    config = tmp_path / "own.toml"
    config.write_text(file)
    named = ("--config", config) if file else ()
    for study in (("ablate", "components"), ("sweep", "topk")):
        result = bench(*study, *named, *options)
        assert "That will do." in result.err
    assert [settings.preset for settings in planned] == [preset] * 2
    assert [settings.model.eta for settings in planned] == [0.1 if "eta" in file else 0.05] * 2


def test_wrong_options_are_told(bench):
    assert "--encoders goes with backbones" in bench("ablate", "components", "--encoders", "a").err
    assert bench("ablate", "everything").code == 2
    for study in (("ablate", "recipe"), ("sweep", "eta")):
        assert "--set seed=3 would do nothing" in bench(*study, "--set", "seed=3").err
    assert "no data set 'Brian'" in bench("ablate", "components", datasets="Brian").err
    assert bench("sweep", "topk", "--values", "0.5").code == 0
    other = bench("sweep", "topk", "--values", "0.5", "--set", "model.eta=0.1")
    assert other.code == 2
    assert "model.eta = 0.05, not 0.1" in other.err


def test_failures_are_named_and_the_rest_is_shown(bench, monkeypatch):
    from recap.bench import run_cell

    fit = run_cell._fit

    def failing(cell, *rest):
        if cell.settings.model.top_k == 0.5:
            raise InputError("pool.png: is damaged.")
        return fit(cell, *rest)

    monkeypatch.setattr(run_cell, "_fit", failing)
    result = bench("sweep", "topk", "--values", "0.5")
    assert result.code == 1
    assert "pool.png: is damaged." in result.err
    assert "\n| 0.1 |" in result.out
    assert "\n| 0.5 |" not in result.out
