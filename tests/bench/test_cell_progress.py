import pytest

from quick_encoder import encoder_read_once  # noqa: F401
from recap.bench import run_cell as module
from recap.bench.cells import EVERY_S, HowFar, how_far, noting, plan_cells, work_folder
from recap.bench.run import run_cells

NAME = "recap/Brain/2-shot/seed-0"


def test_a_stage_is_noted_when_it_begins_and_then_now_and_then(tmp_path):
    now = [0.0]
    note = noting(work_folder(tmp_path, NAME), lambda: now[0])
    assert how_far(tmp_path, NAME) is None
    seen = []
    for step in range(5):
        note("train", step, 4, "")
        seen.append(how_far(tmp_path, NAME))
        now[0] += 0.4 * EVERY_S
    assert [at.done for at in seen] == [0, 0, 0, 3, 3]
    note("score", 0, 9, "a.png")
    assert how_far(tmp_path, NAME) == HowFar("score", 0, 9)


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b'{"stage": "train"}', b"\xff", b"3"])
def test_what_cannot_be_read_says_nothing(content, tmp_path):
    work_folder(tmp_path, NAME).mkdir(parents=True)
    (work_folder(tmp_path, NAME) / "progress.json").write_bytes(content)
    assert how_far(tmp_path, NAME) is None


def test_where_nothing_can_be_written_the_cell_goes_on(tmp_path):
    (tmp_path / "work").write_text("a file")
    noting(work_folder(tmp_path, NAME))("train", 1, 2, "")
    assert how_far(tmp_path, NAME) is None


@pytest.mark.parametrize("shots", [0, 2])
def test_a_cell_tells_how_far_it_is(shots, settings, domains, tmp_path, monkeypatch):
    """Both while it is fitted and while it scores; nothing is left when it is done."""
    told = []
    monkeypatch.setattr(module, "noting", lambda work: lambda *step: told.append((work, *step)))
    (cell,) = plan_cells(dict.fromkeys(["recap"], settings), ["Brain"], [shots], [0])
    assert run_cells([cell], domains, tmp_path) == {}
    stages = list(dict.fromkeys(stage for _, stage, *_ in told))
    assert stages[0] == "encode"
    assert "train" in stages
    assert stages[-1] == "score"
    assert told[-1][2:4] == (6, 6)
    folders = {work for work, *_ in told}
    assert len(folders) == 1
    assert folders.pop().is_relative_to(tmp_path / "work" / "recap" / "Brain")
    assert not [file for file in (tmp_path / "work").rglob("*") if file.is_file()]
