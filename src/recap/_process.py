"""Processes: how this one keeps memory, and others that work for it.

Worker processes leave Ctrl-C to their parent and never outlive it.
"""

import atexit
import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's names for them in malloc.h
_KEPT_BYTES = 256 * 2**20
_LARGE_BYTES = 32 * 2**20
"""Larger pieces, such as whole volumes, still go back at once; glibc takes no higher bound."""
_OBJECTS = 10_000
"""Collect after so many new objects. Few enough that images held by a cycle do not pile up."""
_RAREST = 60


def keep_freed_memory() -> None:
    """Keep memory that was freed for the next tensor; does nothing without glibc.

    Every block of an encoder frees and asks for the same few megabytes. By its defaults the C
    library may hand them back in between, and the system gives them out again page by page, each
    wiped first. On virtual machines a page can take microseconds, and an image takes a thousand of
    them. It counts for the whole process: only commands call it, and processes that they start.
    """
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)


def collect_seldom() -> None:
    """Have Python look for garbage seldom, in the whole process.

    It looks through everything that libraries make on import after every few hundred objects, of
    which torch and transformers make a million, and once more when a command ends; nothing of it
    is ever garbage. That is a fifth of the time of a command on one image.
    """
    gc.set_threshold(_OBJECTS)
    atexit.unregister(gc.freeze)  # once is enough
    atexit.register(gc.freeze)  # what is there when a command ends goes with its process


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def process_pool(workers: int, preload: str) -> ProcessPoolExecutor:
    """A pool of clean processes; the module `preload` is imported once for all where possible."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        context: BaseContext = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([preload])
    else:
        context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_start)


def run_each(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    workers: int,
    died: Callable[[Item], Result],
    at_once: int = 1,
) -> Iterator[Result]:
    """What `work` gives for each item, in any order; `died` where its process did not survive it.

    A process takes `at_once` items. `work` is a function of a module, which is loaded once for all.
    """
    waiting = deque(items[k : k + at_once] for k in range(0, len(items), at_once))
    while waiting:
        flying: dict[Future[list[Result]], Sequence[Item]] = {}
        try:
            yield from _until_one_dies(work, waiting, flying, workers)
        except BrokenProcessPool:
            # Any of them may have been the cause: each gets a process of its own.
            for item in (item for group in flying.values() for item in group):
                yield _alone(work, item, died)


def _until_one_dies(
    work: Callable[[Item], Result],
    waiting: deque[Sequence[Item]],
    flying: dict[Future[list[Result]], Sequence[Item]],
    workers: int,
) -> Iterator[Result]:
    pool = process_pool(workers, work.__module__)
    try:
        while waiting or flying:
            while waiting and len(flying) < 2 * workers:
                # Off the list only when it is in the pool: one that has just broken takes nothing.
                future = pool.submit(_all_of, work, waiting[0])
                flying[future] = waiting.popleft()
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                done = future.result()
                del flying[future]
                yield from done
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _alone(work: Callable[[Item], Result], item: Item, died: Callable[[Item], Result]) -> Result:
    with process_pool(1, work.__module__) as pool:
        try:
            return pool.submit(_all_of, work, [item]).result()[0]
        except BrokenProcessPool:
            return died(item)


def _all_of(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [work(item) for item in items]


def _start() -> None:
    keep_freed_memory()
    collect_seldom()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A killed parent cannot tell its children to stop.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Retries:
    """When to try again what failed, each thing on its own: soon at first, then more rarely.

    A restart tries all of it again. For any thread.
    """

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._waits: dict[Hashable, tuple[float, float]] = {}

    def is_due(self, key: Hashable) -> bool:
        """Tell whether nothing keeps a thing from being tried."""
        wait = self._waits.get(key)
        return wait is None or wait[0] <= time.monotonic()

    def waiting(self) -> list[Hashable]:
        """List all whose time has not come."""
        # A copy: another thread may postpone or forget one meanwhile.
        return [key for key in self._waits.copy() if not self.is_due(key)]

    def postpone(self, key: Hashable) -> None:
        """Let a thing wait, each time twice as long: many that fail must not take all the time."""
        _, wait_s = self._waits.get(key, (0.0, self._first_s))
        self._waits[key] = time.monotonic() + wait_s, min(2 * wait_s, _RAREST * self._first_s)

    def forget(self, key: Hashable) -> None:
        """Note that a thing has been dealt with."""
        self._waits.pop(key, None)
