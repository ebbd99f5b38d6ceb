"""A clock for a noisy machine: contenders take turns, so that a slow minute hits all alike."""

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

Name = TypeVar("Name")


class Lap(NamedTuple):
    """What one call took: by the clock on the wall, and of all processors' time."""

    wall_ms: float
    cpu_ms: float


def read_clocks() -> Lap:
    """Both clocks now; only differences mean something."""
    return Lap(time.perf_counter_ns() / 1e6, time.process_time_ns() / 1e6)


def time_rounds(
    calls: Mapping[Name, Callable[[], object]],
    runs: int,
    warmup: int,
    after_round: Callable[[], None] = lambda: None,
    clocks: Callable[[], Lap] = read_clocks,
) -> dict[Name, list[Lap]]:
    """What every call took, one lap per round; the same position is the same round.

    In each round every call is made once, in an order drawn anew: none always follows the same
    neighbour, which leaves the processor's caches warm or cold. The first `warmup` rounds are not
    kept.
    """
    laps: dict[Name, list[Lap]] = {name: [] for name in calls}
    order, draw = list(calls), random.Random(0)
    with _no_collections():
        for number in range(warmup + runs):
            draw.shuffle(order)
            for name in order:
                start = clocks()
                calls[name]()
                end = clocks()
                if number >= warmup:
                    laps[name].append(Lap(end[0] - start[0], end[1] - start[1]))
            after_round()
    return laps


@contextmanager
def _no_collections() -> Iterator[None]:
    """Python's garbage collector strikes at random, so it waits."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
