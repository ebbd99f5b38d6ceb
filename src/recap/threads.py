"""Threads that compute: how they wait for each other, and whether somebody said how many.

torch's threads meet after every step of a computation. By default those that are there first look
again and again whether the others have come. On a machine of one's own that is the fastest; where
other processes want the cores it takes time from the very threads that are waited for, and a fit
of seconds takes minutes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

WAITING = {
    "OMP_WAIT_POLICY": "PASSIVE",
    # libgomp, which torch brings on Linux: rounds of looking before a thread sleeps. A thousand
    # take about as long as falling asleep and being woken, instead of a slice of the scheduler.
    "GOMP_SPINCOUNT": "1000",
    # The runtimes of LLVM and Intel, on other systems: milliseconds of the same.
    "KMP_BLOCKTIME": "0",
}
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_fixed = False


def wait_passively() -> None:
    """Let threads that wait leave the core to others, unless the user has said how they wait.

    The runtime reads it once, when torch is loaded; processes that are started inherit it.
    """
    if not WAITING.keys() & os.environ.keys():
        os.environ.update(WAITING)


@contextmanager
def fixed_threads(count: int) -> Iterator[None]:
    """Have torch use so many threads, and nobody measure whether fewer would do."""
    global _fixed
    import torch

    before = torch.get_num_threads(), _fixed
    torch.set_num_threads(count)
    _fixed = True
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        _fixed = before[1]


def threads_are_given() -> bool:
    """Say whether the number of threads is a wish of the user's, rather than the default."""
    return _fixed or any(name in os.environ for name in _COUNTS)
