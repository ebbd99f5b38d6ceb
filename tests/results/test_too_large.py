"""A case that takes more memory than there is costs no other."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from folder_runs import score_to_folder
from recap.data.cases import Found, find_cases
from recap.errors import InputError
from recap.io.case import LazyImages
from recap.scoring.predict import refusing_too_large


def asks_torch():
    torch.empty(10**15)


def asks_numpy():
    np.empty(10**15)


def asks_a_gpu():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


@pytest.mark.parametrize("ask", [asks_torch, asks_numpy, asks_a_gpu])
def test_a_want_of_memory_is_told_in_words(ask):
    with pytest.raises(InputError, match="more memory than there is"), refusing_too_large():
        ask()


def test_other_faults_remain_what_they_are():
    with pytest.raises(RuntimeError, match="mat1 and mat2"), refusing_too_large():
        torch.ones(2, 3) @ torch.ones(2, 3)


@pytest.mark.parametrize("where", ["scoring", "writing"])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_others_are_scored_and_the_next_run_tries_again(
    where, batch, few_shot, tmp_path, monkeypatch
):
    folder = tmp_path / "images"
    folder.mkdir()
    for name, grey in {"a.png": 10, "large.png": 250, "z.png": 90}.items():
        Image.new("L", (48, 48), grey).save(folder / name)
    original = few_shot.model.encode

    def encode(pixels):
        if where == "scoring" and bool((pixels.mean(dim=(1, 2, 3)) > 0.9).any()):
            asks_torch()
        return original(pixels)

    def draw(case, prediction, path):
        if where == "writing" and "large" in path.name:
            asks_numpy()
        path.write_bytes(b"drawn")

    def run(drawing):
        cases = find_cases([folder], Path("no archives here")).cases
        return score_to_folder(few_shot, cases, tmp_path / "out", drawing, batch=batch)

    monkeypatch.setattr(few_shot.model, "encode", encode)
    rows = {row.case: row for row in run(draw)}
    assert [rows[name].status for name in ("a.png", "large.png", "z.png")] == ["ok", "error", "ok"]
    assert "more memory" in rows["large.png"].error
    monkeypatch.undo()
    assert all(row.status == "ok" for row in run(lambda case, prediction, path: path.touch()))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_picture_over_the_budget_is_a_row_that_says_so(batch, few_shot, tmp_path, monkeypatch):
    folder = tmp_path / "images"
    folder.mkdir()
    for name, side in {"a.png": 48, "huge.png": 2000, "z.png": 48}.items():
        Image.new("L", (side, side), 90).save(folder / name)
    cases = find_cases([folder], Path("no archives here")).cases

    def run():
        drawing = lambda case, prediction, path: path.touch()  # noqa: E731
        rows = score_to_folder(few_shot, cases, tmp_path / "out", drawing, batch=batch)
        return {row.case: row for row in rows}

    monkeypatch.setenv("RECAP_DECODE_GB", "0.1")
    rows = run()
    assert [rows[name].status for name in ("a.png", "huge.png", "z.png")] == ["ok", "error", "ok"]
    assert "RECAP_DECODE_GB=1" in rows["huge.png"].error
    monkeypatch.delenv("RECAP_DECODE_GB")
    assert run()["huge.png"].status == "ok"


def test_very_large_pictures_score_the_same_alone(few_shot, tmp_path, monkeypatch):
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png", "c.png"):
        Image.fromarray(rng.integers(0, 256, (90, 80), np.uint8)).save(folder / name)
    cases = find_cases([folder], Path("no archives here")).cases

    def run(out):
        drawing = lambda case, prediction, path: path.touch()  # noqa: E731
        rows = score_to_folder(few_shot, cases, tmp_path / out, drawing)
        return [(r.case, r.kind, r.score, r.regions, r.height) for r in rows], [
            (tmp_path / out / "maps" / f"{r.case}.npy").read_bytes() for r in rows
        ]

    together = run("together")
    monkeypatch.setattr("recap.data.cases.ALONE_BYTES", 0)
    assert run("alone") == together


@pytest.mark.parametrize("what", ["open_file", "image"])
def test_a_want_of_memory_while_a_case_is_read_costs_no_other(
    what, few_shot, tmp_path, monkeypatch
):
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("a.png", "large.png", "z.png"):
        Image.new("L", (48, 48), 90).save(folder / name)
    cases = find_cases([folder], Path("no archives here")).cases
    opened = Found.open

    def open_with_little_memory(found, reading):
        case = opened(found, reading)
        if found.name != "large.png":
            return case
        if what == "open_file":
            asks_numpy()
        return replace(case, images=LazyImages(1, lambda number: asks_numpy()))

    monkeypatch.setattr(Found, "open", open_with_little_memory)
    drawing = lambda case, prediction, path: path.touch()  # noqa: E731
    rows = {r.case: r for r in score_to_folder(few_shot, cases, tmp_path / "out", drawing)}
    assert [rows[name].status for name in ("a.png", "large.png", "z.png")] == ["ok", "error", "ok"]
    assert "more memory" in rows["large.png"].error
