import os

import pytest

from recap._process import Here, Processes
from recap.bench.run import DIED, run_jobs
from stub_jobs import Desk, stub_jobs


@pytest.fixture
def desk():
    return Desk()


def test_one_after_the_other(desk, tmp_path):
    run_jobs(stub_jobs(tmp_path, "work", "fail", "work"), Here(), desk.start, desk.end)
    assert desk.started == ["work-0", "fail-1", "work-2"]
    assert desk.ended == {"work-0": "", "fail-1": "chest.png: is damaged.", "work-2": ""}


def test_a_dead_process_costs_only_its_own_cell(desk, tmp_path):
    todo = stub_jobs(tmp_path, "die", "work", "die once", "work", "work")
    run_jobs(todo, Processes(2), desk.start, desk.end)
    assert desk.ended == {
        "die-0": DIED,
        "work-1": "",
        "die once-2": "",
        "work-3": "",
        "work-4": "",
    }
    assert len(todo[0].runs()) == 2
    assert len(todo[4].runs()) <= 2


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_interrupt_ends_the_processes(desk, tmp_path):
    todo = stub_jobs(tmp_path, "sleep", "work", "work")

    def interrupted(job, problem):
        desk.end(job, problem)
        while not todo[0].runs():
            pass
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(todo, Processes(2), desk.start, interrupted)
    assert desk.ended == {"work-1": ""}
    pids = [int(run.read_text()) for job in todo for run in job.runs()]
    assert pids
    assert not any(map(is_alive, pids))
