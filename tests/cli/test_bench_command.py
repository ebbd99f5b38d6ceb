import json

import pytest


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
    assert result.out == f"4 of 4 cells are done: {tmp_path / 'runs'}/cells\n"
    files = sorted((tmp_path / "runs" / "cells").rglob("*.json"))
    assert len(files) == 4
    stamps = [file.stat().st_mtime_ns for file in files]
    assert run_bench().code == 0
    assert [file.stat().st_mtime_ns for file in files] == stamps
    assert "image_auroc" in json.loads(files[0].read_text())["metrics"]
    marks = {"md": "| ", "csv": "table,row", "html": "<table", "latex": "tabular"}
    for form, mark in marks.items():
        table = command("bench", "table", tmp_path / "runs", "--format", form)
        assert table.code == 0, table.err
        assert mark in table.out
    ours = command("bench", "table", tmp_path / "runs", "--ours")
    assert "Ours only" in ours.out
    assert "As published" not in ours.out


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
