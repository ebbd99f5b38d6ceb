import threading
import time
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.pipeline import Behind, ahead


class Gauge:
    """How many things are somewhere at once, and the most there ever were."""

    def __init__(self):
        self.now = self.most = 0
        self._lock = threading.Lock()

    def add(self, step):
        with self._lock:
            self.now += step
            self.most = max(self.most, self.now)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 30), st.integers(0, 4), st.integers(1, 6))
def test_results_come_in_the_order_of_the_items(count, threads, most):
    assert list(ahead(lambda n: n * n, range(count), threads, most)) == [
        n * n for n in range(count)
    ]


def test_no_more_is_read_ahead_than_allowed():
    gauge = Gauge()

    def read(number):
        gauge.add(1)
        return number

    for _ in ahead(read, range(200), 3, 5):
        gauge.add(-1)
    assert gauge.now == 0
    assert 1 < gauge.most <= 5


def test_reading_goes_on_while_the_caller_works():
    second_was_read = threading.Event()

    def read(number):
        if number == 1:
            second_was_read.set()
        return number

    reading = ahead(read, range(3), 1, 2)
    assert next(reading) == 0
    assert second_was_read.wait(30)
    assert list(reading) == [1, 2]


def test_without_threads_nothing_is_read_before_it_is_asked_for():
    read = []
    reading = ahead(lambda n: read.append(n) or n, range(3), 0, 5)
    assert next(reading) == 0
    assert read == [0]


def test_closed_it_stops_reading():
    read = []
    with closing(ahead(lambda n: read.append(n) or n, range(1000), 2, 4)) as reading:
        next(reading)
    assert len(read) <= 4


def test_an_error_of_a_reader_comes_in_its_place():
    def read(number):
        if number == 2:
            raise ValueError("two")
        return number

    seen = []
    with pytest.raises(ValueError, match="two"):
        seen.extend(ahead(read, range(5), 2, 4))
    reading = ahead(read, range(5), 2, 4)
    assert [next(reading), next(reading)] == [0, 1]


def test_the_caller_waits_for_slow_writers():
    gauge, written = Gauge(), []

    def write(number):
        time.sleep(0.002)
        written.append(number)
        gauge.add(-1)

    with Behind(write, 2, 3) as behind:
        for number in range(40):
            behind.put(number)
            gauge.add(1)
    assert sorted(written) == list(range(40))
    assert gauge.most <= 4  # the caller counts a little late


def test_settled_everything_is_written():
    written = []
    with Behind(lambda n: time.sleep(0.01) or written.append(n), 2, 10) as behind:
        for number in range(4):
            behind.put(number)
        behind.settle()
        assert sorted(written) == [0, 1, 2, 3]


def put_all(write, items, most, then=None):
    """Put items with one writer; returns nothing but the writer's errors, or what comes then."""
    with Behind(write, 1, most) as behind:
        for item in items:
            behind.put(item)
        if then is not None:
            raise then


def test_interrupted_what_was_put_is_written():
    written = []
    with pytest.raises(KeyboardInterrupt):
        put_all(lambda n: time.sleep(0.01) or written.append(n), range(3), 5, KeyboardInterrupt)
    assert written == [0, 1, 2]


def fail_at_one(number):
    if number == 1:
        raise ValueError("one")


def test_an_error_of_a_writer_stops_the_caller():
    taken = []
    with pytest.raises(ValueError, match="one"):
        put_all(fail_at_one, (taken.append(n) or n for n in range(100)), 1)
    assert len(taken) <= 3
    with pytest.raises(ValueError, match="one"):
        put_all(fail_at_one, [1], 5)


def test_the_first_error_is_not_hidden_by_a_writer():
    with pytest.raises(KeyboardInterrupt):
        put_all(fail_at_one, [1], 5, KeyboardInterrupt)
