import io
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console

from recap.bench.cells import noting, plan_cells, work_folder
from recap.bench.run import Outcome
from recap.cli import bench_progress
from recap.cli.bench_progress import (
    RunLine,
    RunLog,
    TimeLeft,
    auroc_table,
    clock,
    percent,
    watching,
)
from recap.methods.registry import resolve_settings

DATASETS = ["Brain", "Histopathology", "AVeryLongDataSetName"]
SHOTS = [0, 2, 4, 8, 16]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(scope="module")
def cells():
    settings = resolve_settings()
    return plan_cells(dict.fromkeys(["recap", "nearest"], settings), DATASETS, SHOTS, [0, 1, 2])


@pytest.fixture
def drawn(cells, tmp_path):
    """Two of three seeds of one place done, one running; another place failed."""
    now = Clock()
    line = RunLine(tmp_path, TimeLeft(now))
    assert line.render().plain == ""
    two = [c for c in cells if (c.method, c.dataset, c.shots) == ("recap", "Brain", 2)]
    line.planned(cells, [Outcome(two[0], 0.5)])
    line.started(two[1])
    now.now = 60
    line.finished(Outcome(two[1], 0.75, seconds=60))
    line.started(two[2])
    noting(work_folder(tmp_path, two[2].name))("train", 30, 440, "loss 0.1")
    four = next(c for c in cells if (c.dataset, c.shots) == ("Histopathology", 4))
    line.started(four)
    line.finished(Outcome(four, problem="chest.png: is damaged."))
    now.now = 125
    return line


def test_one_line_says_how_far_and_what_runs(drawn):
    # 77 cells of a minute wait, two run at once; the one that runs is late.
    assert drawn.render().plain == (
        "3/81 cells in 0:02:05, about 0:39:00 left, 1 failed, recap Brain 2-shot seed 2, "
        "training 30/440"
    )


@pytest.mark.parametrize("width", [30, 80])
def test_it_stays_one_line(drawn, width):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    assert len(console.render_lines(drawn.render())) == 1


def test_a_table_at_the_end_has_the_means(drawn):
    head, *lines = auroc_table(drawn.outcomes).splitlines()
    assert "image AUROC in %" in head
    assert [line.split() for line in lines] == [
        ["method", "data", "set", "2-shot", "4-shot"],
        ["recap", "Brain", "62.5", "–"],
        ["recap", "Histopathology", "–", "–"],
    ]


def test_logs_get_a_line_per_cell(cells, capsys, tmp_path):
    lines = RunLog(tmp_path)
    lines.planned(cells[:3], [Outcome(cells[0], 0.5)])
    lines.started(cells[1])
    lines.finished(Outcome(cells[1], 0.981, seconds=81.2))
    lines.started(cells[2])
    lines.finished(Outcome(cells[2], problem="trace\nValueError: x", seconds=1.0))
    assert capsys.readouterr().err.splitlines() == [
        "3 cells, 1 of them done before.",
        f"2/3 {cells[1].name}: image AUROC 98.1, 81 s, about 0:01:21 left",
        f"3/3 {cells[2].name}: failed (ValueError: x), 1 s, all done",
    ]
    with watching(tmp_path) as watch:
        assert isinstance(watch, RunLog)


def test_a_log_says_now_and_then_what_runs(cells, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_progress, "QUIET_S", 0.2)
    noting(work_folder(tmp_path, cells[0].name))("score", 3, 50, "a.png")
    with watching(tmp_path) as watch:
        watch.planned(cells[:2], [])
        watch.started(cells[0])
        watch.started(cells[1])
        watch.still_there()
        assert len(capsys.readouterr().err.splitlines()) == 1  # something was said just now
        deadline, said = time.monotonic() + 20, []
        while len(said) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
            said += capsys.readouterr().err.splitlines()
    assert said[:2] == [
        f"… {cells[0].name} for 0:00:00, scoring 3/50",
        f"… {cells[1].name} for 0:00:00",
    ]


def test_small_words():
    assert (percent(None), percent(1.0), clock(3725.4)) == ("–", "100.0", "1:02:05")


def marked_processes(mark):
    """Those whose environment has a mark: all that a command has started, in whatever session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


def wait_for(condition, process, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")
# Workers of Ray take long to start: one is enough to see that it goes.
@pytest.mark.parametrize(
    ("engine", "jobs", "number"), [("local", 2, signal.SIGINT), ("ray", 1, signal.SIGTERM)]
)
def test_a_signal_leaves_no_process_behind(engine, jobs, number, domains, tiny, tmp_path):
    if engine == "ray" and find_spec("ray") is None:
        pytest.skip("Ray is not installed: extra `ray`")
    out, mark = tmp_path / "out", f"RECAP_TEST_MARK={tmp_path}"
    options = ["--data", domains[0].root.parent, "--out", out, "--methods", "recap"]
    options += ["--shots", 2, "--seeds", 0, "--jobs", jobs, "--engine", engine]
    options += [*tiny, "--set", "training.epochs=100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "recap", "bench", "run", *map(str, options)],
        env=os.environ | dict([mark.split("=", 1)]),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell has commands in the background ignore interrupts, and their children inherit it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for(lambda: len(list(out.glob("work/recap/*/*/*"))) == jobs, process, 200)
        # A terminal interrupts all that runs in it, a scheduler tells the command alone.
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        said = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
        assert f"recap: {said}." in process.communicate(timeout=60)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 128 + number
    deadline = time.monotonic() + 30
    while left := marked_processes(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
