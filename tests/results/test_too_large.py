"""A case that takes more memory than there is costs no other."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from folder_runs import score_to_folder
from recap.data.cases import find_cases
from recap.errors import InputError
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
    original = few_shot.model.prefix

    def prefix(pixels):
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

    monkeypatch.setattr(few_shot.model, "prefix", prefix)
    rows = {row.case: row for row in run(draw)}
    assert [rows[name].status for name in ("a.png", "large.png", "z.png")] == ["ok", "error", "ok"]
    assert "more memory" in rows["large.png"].error
    monkeypatch.undo()
    assert all(row.status == "ok" for row in run(lambda case, prediction, path: path.touch()))
