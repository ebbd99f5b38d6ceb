import pytest

from recap.bench.cells import plan_cells
from recap.bench.run import Outcome
from recap.cli.bench_progress import TimeLeft
from recap.methods.registry import resolve_settings


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def times(clock):
    return TimeLeft(clock)


@pytest.fixture
def cells():
    """Four of 2 shots, then four of 4, over two data sets and two seeds."""
    return plan_cells(
        dict.fromkeys(["recap"], resolve_settings()), ["Brain", "Chest"], [2, 4], [0, 1]
    )


def finish(times, cell, seconds, **more):
    times.finished(Outcome(cell, 0.9, seconds=seconds, **more))


def test_nothing_is_known_before_the_first_cell(times, cells):
    times.planned(cells, [Outcome(cells[0], 0.9)])
    times.started(cells[1])
    assert times.seconds() is None
    assert (times.done, times.total) == (1, 8)


def test_like_cells_take_as_long_and_unknown_ones_the_mean(times, cells, clock):
    """Brain took 10 s, Chest 30 s; of 4 shots nothing is known: 20 s each."""
    times.planned(cells, [])
    for cell, seconds in zip(cells[:2], (10, 30), strict=True):
        times.started(cell)
        clock.now += seconds
        finish(times, cell, seconds)
    assert times.seconds() == pytest.approx(10 + 30 + 4 * 20)
    times.started(cells[2])
    clock.now += 4
    assert times.seconds() == pytest.approx(6 + 30 + 4 * 20)
    clock.now += 100
    assert times.seconds() == pytest.approx(30 + 4 * 20)
    assert times.elapsed() == 144
    assert times.running_for() == {cells[2].name: (cells[2], 104)}


def test_cells_are_dealt_out_to_the_slots_in_use(times, cells, clock):
    """Two at once, 10 s each: three remain after the running ones, so two more rounds."""
    times.planned(cells, [Outcome(cell, 0.9) for cell in cells[:2]])
    times.started(cells[2])
    times.started(cells[3])
    clock.now += 10
    finish(times, cells[2], 10)
    times.started(cells[4])
    clock.now += 5
    assert times.seconds() == pytest.approx(5 + 10 + 5)
    assert TimeLeft(clock).seconds() == 0


def test_failures_teach_nothing(times, cells):
    times.planned(cells, [])
    times.started(cells[0])
    finish(times, cells[0], 0.1, problem="is damaged")
    assert times.seconds() is None
    assert times.done == 1
