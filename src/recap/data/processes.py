"""Worker processes that leave Ctrl-C to their parent and never outlive it, and cores for them."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from typing import TypeVar

from recap.allocator import keep_freed_memory
from recap.collector import collect_seldom

Item = TypeVar("Item")
Result = TypeVar("Result")


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
