"""Garbage is looked for seldom, still found, and no more when a command ends."""

import json
import subprocess
import sys

# Objects that hold themselves are garbage only for the collector; the last lines are for the exit,
# where what is registered first runs last.
CYCLES = """
import atexit, gc, json, weakref

@atexit.register
def tell():
    print(json.dumps({"left": left, "looks": looks, "frozen": gc.get_freeze_count()}))

from recap.collector import collect_seldom
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
