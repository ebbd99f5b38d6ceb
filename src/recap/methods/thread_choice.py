"""How many threads train: all, or one where steps are so small that threads only wait.

Measured on the first step of a fit and kept for this machine, so that the same fit has the same
threads, and with them the same bytes, the next time. Who sets OMP_NUM_THREADS has exactly those.
"""

import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import nn

from recap._files import locked, write_atomic
from recap.encoders.weights import cache_dir
from recap.errors import InputError
from recap.threads import threads_are_given

FILE = "training-threads.json"
FEWEST_STEPS = 50
"""A shorter training is over before a measurement pays."""
ROUNDS, SECONDS = 5, 0.5
"""Steps of each kind that are timed, and when to be content with fewer."""


@contextmanager
def training_threads(model: nn.Module, step: Callable[[], object], steps: int) -> Iterator[None]:
    """Train on as many threads as are fastest for `step`, which may be run any number of times."""
    before = torch.get_num_threads()
    torch.set_num_threads(_chosen(model, step, steps, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _chosen(model: nn.Module, step: Callable[[], object], steps: int, most: int) -> int:
    device = next(model.parameters()).device
    if most == 1 or device.type != "cpu" or threads_are_given():
        return most
    path, key = cache_dir() / FILE, _key(model, most)
    kept = _read(path).get(key)
    if kept is not None and kept in (1, most):
        return kept
    if steps < FEWEST_STEPS:
        return most
    found = fastest(step, (most, 1))
    # Where nothing can be kept, the next fit measures again.
    with suppress(InputError), locked(path.with_suffix(".lock")):
        found = _read(path).setdefault(key, found)
        write_atomic(path, json.dumps({**_read(path), key: found}, indent=1))
    return found


def fastest(step: Callable[[], object], counts: tuple[int, ...]) -> int:
    """The number of threads with which `step` takes the least time at best.

    At best: what else runs on the machine makes single steps slower, and none faster.
    """
    best = dict.fromkeys(counts, float("inf"))
    started = time.perf_counter()
    for lap in range(1 + ROUNDS):
        for count in counts:
            torch.set_num_threads(count)
            since = time.perf_counter()
            step()
            if lap:  # the first one has to fetch memory
                best[count] = min(best[count], time.perf_counter() - since)
        if lap and time.perf_counter() - started > SECONDS:
            break
    return min(counts, key=best.__getitem__)


def _key(model: nn.Module, most: int) -> str:
    """Everything that decides which number is the fastest, as far as it is known beforehand."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    parts = (platform.node(), f"{most} threads", f"torch {torch.__version__}")
    return ", ".join((*parts, f"{type(model).__name__} with {trained} trained parameters"))


def _read(path: Path) -> dict[str, int]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or damaged
        return {}
    return kept if isinstance(kept, dict) else {}
