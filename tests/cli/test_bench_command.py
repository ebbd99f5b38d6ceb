import json
import shutil

import pytest

from recap.bench import run as running
from recap.data import draw_support
from recap.data.supports import write_support
from recap.methods.registry import METHODS


@pytest.fixture
def run_bench(command, domains, tiny, tmp_path):
    def run(*more):
        options = ("--shots", "2", "--seeds", "0-1", "--methods", "nearest", *more)
        root = domains[0].root.parent
        return command("bench", "run", "--data", root, "--out", tmp_path / "runs", *options, *tiny)

    return run


def test_run_then_table(run_bench, command, tmp_path):
    result = run_bench()
    assert result.code == 0, result.err
    assert result.out == f"4 of 4 cells done: {tmp_path / 'runs'}/cells\n"
    files = sorted((tmp_path / "runs" / "cells").rglob("*.json"))
    assert len(files) == 4
    stamps = [file.stat().st_mtime_ns for file in files]
    assert run_bench().code == 0
    assert [file.stat().st_mtime_ns for file in files] == stamps
    assert "image_auroc" in json.loads(files[0].read_text())["metrics"]
    marks = {"md": "| ", "csv": "table,row", "latex": "tabular"}
    for form, mark in marks.items():
        table = command("bench", "table", tmp_path / "runs", "--format", form)
        assert table.code == 0, table.err
        assert mark in table.out
    ours = command("bench", "table", tmp_path / "runs", "--ours")
    assert "Ours only" in ours.out
    assert "As published" not in ours.out
    pool = command("bench", "table", tmp_path / "runs", "--on", "pool")
    assert (pool.code, pool.out) == (2, "")
    assert "no finished results on the pools. Make some with `recap bench run --on p" in pool.err


def test_columns_are_compared(run_bench, command, tmp_path):
    assert run_bench("--methods", "nearest,recap", "--datasets", "Brain").code == 0
    assert run_bench("--methods", "recap", "--datasets", "Brain", "--preset", "fast").code == 0
    told = command(
        "bench", "compare", tmp_path / "runs", "recap", "nearest", "--to", "recap (fast)"
    )
    assert told.code == 0, told.err
    for column in ("recap", "nearest", "recap (fast)"):
        assert f"| {column} |" in told.out
    assert "Difference to recap (fast)" in told.out
    assert "pixel F1-max" in told.out
    wrong = command("bench", "compare", tmp_path / "runs", "recap", "--to", "nearst")
    assert wrong.code == 2
    assert "has no 'nearst'. It has: nearest, recap, recap (fast)" in wrong.err


@pytest.mark.parametrize(("more", "jobs"), [((), None), (("--jobs", "3"), 3)])
def test_how_many_cells_run_at_once_is_the_engines_to_say(run_bench, monkeypatch, more, jobs):
    asked = []
    monkeypatch.setattr(running, "run_cells", lambda *_, **options: asked.append(options) or {})
    result = run_bench("--engine", "ray", "--ray-address", "head:6379", *more)
    assert result.code == 0, result.err
    assert [options["jobs"] for options in asked] == [jobs]


def test_zero_shot_learns_from_data_sets_that_are_not_measured(run_bench):
    one = run_bench("--methods", "recap", "--shots", "0", "--datasets", "Brain", "--seeds", "0")
    assert one.code == 0, one.err
    assert "1 of 1 cell done" in one.out


def test_zero_shot_of_the_only_data_set_is_left_out_and_that_is_said(
    command, domains, tiny, tmp_path
):
    options = ("--shots", "0,2", "--seeds", "0", "--methods", "recap")
    where = ("--data", domains[0].root, "--out", tmp_path / "runs")
    result = command("bench", "run", *where, *options, *tiny)
    assert result.code == 0, result.err
    assert "1 of 1 cell done" in result.out
    assert f"{domains[0].name} is the only data set" in result.err


def test_settings_can_be_chosen_without_any_test_image(command, domains, tiny, tmp_path):
    data, runs = tmp_path / "data", tmp_path / "runs"
    for domain in domains:
        shutil.copytree(domain.root / "valid", data / domain.root.name / "valid")
    where = ("--data", data, "--out", runs, "--on", "pool")
    options = ("--shots", "2", "--seeds", "0", "--methods", "nearest")
    result = command("bench", "run", *where, *options, *tiny)
    assert result.code == 0, result.err
    (file, *_) = sorted((runs / "cells").rglob("*.json"))
    found = json.loads(file.read_text())
    assert found["cell"]["on"] == "pool"
    pool = next(d for d in domains if d.name == found["cell"]["dataset"]).pool()
    assert found["counts"]["normal"] == sum(not s.abnormal for s in pool) - 2
    assert "Image AUROC" in command("bench", "table", runs, "--on", "pool").out
    # They never stand among results of test images.
    ours = command("bench", "table", runs, "--ours")
    assert ours.code == 2
    assert f"{runs}: no finished results of a grid. Make some with `recap bench run" in ours.err
    assert "--on train" in command("bench", "table", runs, "--on", "train").err


def test_wrong_options_are_told(run_bench, command, tmp_path):
    assert "no data set 'Brian'" in run_bench("--datasets", "Brian").err
    assert "not a list of numbers" in run_bench("--seeds", "first").err
    assert command("bench", "table", tmp_path / "nothing").code == 2
    run_bench()
    assert "--format pdf" in command("bench", "table", tmp_path / "runs", "--format", "pdf").err


def test_two_results_for_one_seed_do_not_mix(run_bench, command, tmp_path):
    run_bench()
    run_bench("--set", "memory.coreset=3")
    result = command("bench", "table", tmp_path / "runs")
    assert result.code == 2
    assert "nearest" in result.err


def test_support_lists_are_used_and_missing_ones_told(run_bench, domains, tmp_path):
    lists = tmp_path / "lists"
    (lists / "Brain").mkdir(parents=True)
    brain = next(domain for domain in domains if domain.name == "Brain")
    support = draw_support(brain, 2, draw=1)
    write_support(support, lists / "Brain" / "2-shot.txt")
    missing = run_bench("--supports", lists)
    assert missing.code == 2
    assert f"{lists}/Chest/2-shot.txt: there is no such support list" in missing.err
    assert not (tmp_path / "runs").exists()
    both = run_bench("--supports", lists, "--datasets", "Brain", "--draw-by-seed")
    assert "--draw-by-seed" in both.err
    result = run_bench("--supports", lists, "--datasets", "Brain", "--seeds", "0")
    assert result.code == 0, result.err
    (file,) = (tmp_path / "runs" / "cells").rglob("*.json")
    listed = json.loads(file.read_text())["cell"]["supports"]["normal"]
    assert [name.split("/")[-1] for name in listed] == [s.path.name for s in support.normal]


def test_entries_of_an_exclusion_list_that_leave_nothing_out_are_told(run_bench, command, tmp_path):
    listed = tmp_path / "exclude.txt"
    listed.write_text("Knee_AD/test/good/img/a.png\nChest_AD/test/good/img/test_000.png\n")
    # More shots than the pool has: nothing is fitted, and the list is looked at all the same.
    result = run_bench("--datasets", "Brain", "--shots", "9", "--seeds", "0", "--exclude", listed)
    assert "exclude.txt: entries that match no image here: Knee/test/good/img/a.png" in result.err
    assert "test_000" not in result.err


@pytest.fixture
def planned(monkeypatch):
    """The cells that would run."""
    found = []
    monkeypatch.setattr(running, "run_cells", lambda cells, *_, **__: found.extend(cells) or {})
    return found


def test_all_methods_are_those_that_the_encoder_has_the_towers_for(
    run_bench, command, domains, planned, tmp_path
):
    texts = {name for name, peer in METHODS.items() if peer.uses_text}
    result = run_bench("--methods", "all", "--seeds", "0")
    assert result.code == 0, result.err
    assert {cell.method for cell in planned} == set(METHODS) - texts
    assert "Left out: april_gan, mediclip, mvfa, madclip. Text is a part of them" in result.err
    planned.clear()
    where = ("--data", domains[0].root.parent, "--out", tmp_path / "clip")
    for option in (("--encoder", "clip-vit-b16"), ("--peer-preset", "official")):
        result = command("bench", "run", *where, "--methods", "all", "--shots", "2", *option)
        assert (result.code, result.err) == (0, "")
        assert {cell.method for cell in planned} == set(METHODS)
        planned.clear()


def test_a_file_may_spell_out_the_default_seed_and_no_other(run_bench, planned, tmp_path):
    config = tmp_path / "own.toml"
    config.write_text("seed = 0\n")
    assert run_bench("--config", config).code == 0
    assert {cell.settings.seed for cell in planned} == {0, 1}
    config.write_text("seed = 3\n")
    refused = run_bench("--config", config)
    assert refused.code == 2
    assert f"--config {config}: seed = 3 would do nothing. Seeds of a grid come" in refused.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--methods", "patchcore", "--set", "trainig.epochs=3"),
            "trainig.epochs=3 is for our own",
        ),
        (("--methods", "patchcore", "--preset", "fast"), "--preset is for our own methods"),
        (("--set", "options.neighbours=3"), "options.neighbours=3 is for the other methods"),
        (("--peer-preset", "official"), "--peer-preset official is for the other methods"),
        (("--seeds", "4-0"), "4-0 has nothing in it"),
        (("--shots", "0"), "leave nothing to run"),
        (("--methods", "recap,nearst"), "No method is called 'nearst'"),
        (
            ("--methods", "recap,mvfa,mediclip"),
            "--methods mvfa,mediclip: text is a part of them, and dinov2-small has no text tower. "
            "Give an --encoder with one, such as clip-vit-b16, or leave them out.",
        ),
        (("--set", "seed = 3"), "--set seed = 3 would do nothing. Seeds of a grid come from --se"),
    ],
)
def test_what_would_do_nothing_is_refused(command, domains, tmp_path, options, said):
    where = ("--data", domains[0].root.parent, "--out", tmp_path / "runs")
    result = command("bench", "run", *where, "--methods", "nearest", *options)
    assert result.code == 2
    assert said in result.err
    assert not (tmp_path / "runs").exists()
