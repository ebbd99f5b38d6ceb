"""Kept memory, rare looks for garbage, and trying again."""

import ctypes
import json
import platform
import subprocess
import sys

import pytest

from recap import _process
from recap._process import Retries

# Twenty megabytes, asked for and touched again and again; how many pages the system gave out.
CHURN = """
import json, resource, sys
import numpy as np
from recap._process import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
faults = []
for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [np.ones(2**19) for _ in range(5)]
    del pieces
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(json.dumps(faults))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone has these settings")
def test_the_same_pages_are_used_again():
    def faults(how):
        run = subprocess.run(
            [sys.executable, "-c", CHURN, how], capture_output=True, text=True, check=True
        )
        return json.loads(run.stdout)

    kept, plain = faults("keep"), faults("plain")
    assert kept[0] > 1000  # the first time they must come from somewhere
    assert max(kept[1:]) < 100
    assert sum(plain[1:]) > sum(kept[1:])


@pytest.mark.parametrize("problem", ["no mallopt", "no library", "no linux"])
def test_other_systems_are_left_alone(monkeypatch, problem):
    def library(name):
        if problem == "no library":
            raise OSError("not here")
        return object()

    if problem == "no linux":
        monkeypatch.setattr(_process.sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", library)
    _process.keep_freed_memory()


# Objects that hold themselves are garbage only for the collector; the last lines are for the exit,
# where what is registered first runs last.
CYCLES = """
import atexit, gc, json, weakref

@atexit.register
def tell():
    print(json.dumps({"left": left, "looks": looks, "frozen": gc.get_freeze_count()}))

from recap._process import collect_seldom
collect_seldom()
collect_seldom()

looks = 0
def count(phase, info):
    global looks
    looks += phase == "start"
gc.callbacks.append(count)

class Knot:
    def __init__(self):
        self.me = self

seen = [weakref.ref(Knot()) for _ in range(50_000)]
left = sum(knot() is not None for knot in seen)
"""


def test_garbage_is_found_seldom_but_found():
    run = subprocess.run(
        [sys.executable, "-c", CYCLES], capture_output=True, text=True, check=True, timeout=60
    )
    told = json.loads(run.stdout)
    assert 1 <= told["looks"] <= 20  # Python's own threshold looks a hundred times and more
    assert told["left"] < 20_000
    assert told["frozen"] > 1000


def test_what_waits_is_tried_more_and_more_rarely(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("recap._process.time.monotonic", lambda: now)
    retries, waits = Retries(60), []
    assert retries.is_due("a")
    for _ in range(9):
        retries.postpone("a")
        before = now
        while not retries.is_due("a"):
            now += 60
        waits.append((now - before) / 60)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    retries.postpone("a")
    retries.forget("a")
    assert retries.is_due("a")


def test_each_waits_for_a_time_of_its_own(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("recap._process.time.monotonic", lambda: now)
    retries = Retries(10)
    for key in ("a", "b", "b"):
        retries.postpone(key)
    assert retries.waiting() == ["a", "b"]
    now += 10
    assert retries.waiting() == ["b"]
    retries.forget("b")
    assert retries.waiting() == []
