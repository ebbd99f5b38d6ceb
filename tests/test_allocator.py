"""Freed memory stays in the process, and asking for that breaks nothing where it cannot be."""

import ctypes
import json
import platform
import subprocess
import sys

import pytest

from recap import allocator

# Twenty megabytes, asked for and touched again and again; how many pages the system gave out.
CHURN = """
import json, resource, sys
import numpy as np
from recap.allocator import keep_freed_memory
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
        monkeypatch.setattr(allocator.sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", library)
    allocator.keep_freed_memory()
