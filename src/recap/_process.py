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
from collections.abc import Callable, Collection, Generator, Hashable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from typing import Any, Protocol, Self, TypeVar

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


class DiedError(Exception):
    """Work whose process did not survive it or, with a reason, that could not be begun."""


class Engine(Protocol):
    """Where work runs, a number of things at a time; a context that ends when the work does."""

    slots: int
    """How many groups of items may be with it."""

    def submit(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Any:
        """Begin to work on items, one after the other; returns a handle."""

    def wait(self, handles: Collection[Any]) -> Sequence[Any]:
        """Wait for the first that end."""

    def result(self, handle: Any) -> list[Any]:
        """Give what the work gave for each item, or raise `DiedError`."""

    def begin_anew(self) -> None:
        """Let go of all processes: the next item has the machine for itself."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None: ...


def run_each(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    engine: Engine,
    died: Callable[[Item, str], Result],
    start: Callable[[Item], None] = lambda item: None,
    at_once: int = 1,
) -> Generator[tuple[Item, Result], None, None]:
    """Give each item with what `work` makes of it, in any order.

    Those that were in the air when a process died are tried again at the end, each alone; what
    kills its process then too is `died`. Close the generator to stop early.

    Args:
        work: A function of a module, or an object that can be pickled, so that it can travel.
        died: What is given instead, by the item and by a reason, empty where its process died.
        start: Told when an item is begun.
        at_once: Items that travel together.
    """
    waiting = deque(items[k : k + at_once] for k in range(0, len(items), at_once))
    flying: dict[Any, Sequence[Item]] = {}
    suspects: list[Item] = []
    with engine:
        while waiting or flying:
            while waiting and len(flying) < engine.slots:
                group = waiting.popleft()
                flying[engine.submit(work, group)] = group
                for item in group:
                    start(item)
            for handle in engine.wait(flying):
                group = flying.pop(handle)
                try:
                    results = engine.result(handle)
                except DiedError as error:
                    if reason := str(error):
                        yield from ((item, died(item, reason)) for item in group)
                    else:  # any of them may have been the cause
                        suspects += group
                    continue
                yield from zip(group, results, strict=True)
        for item in suspects:
            engine.begin_anew()
            start(item)
            try:
                (result,) = engine.result(engine.submit(work, [item]))
            except DiedError as error:
                result = died(item, str(error))
            yield item, result


class Here:
    """This process, one thing after the other."""

    slots = 1

    def submit(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Callable[[], list[Any]]:
        """Remember what to do; it is done when its result is asked for."""
        return lambda: [work(item) for item in items]

    def wait(self, handles: Collection[Any]) -> Sequence[Any]:
        """Give all: nothing is waited for."""
        return list(handles)

    def result(self, handle: Callable[[], list[Any]]) -> list[Any]:
        """Do the work."""
        return handle()

    def begin_anew(self) -> None:
        """Do nothing: there is no other process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        pass


class Processes:
    """Processes of this machine, replaced when one dies; an interrupt ends them.

    `queued` groups for each of them are with the pool at a time: one tells when it is begun, two
    leave no pause between short ones.
    """

    def __init__(self, workers: int, queued: int = 1) -> None:
        self.slots = workers * queued
        self._workers = workers
        self._others = multiprocessing.active_children()
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Future[list[Any]]:
        """Give items to a process; a pool that has just broken takes nothing and is replaced."""
        while True:
            if self._pool is None:
                self._pool = process_pool(self._workers, work.__module__)
            try:
                return self._pool.submit(_all_of, work, items)
            except BrokenProcessPool:
                self.begin_anew()

    def wait(self, handles: Collection[Future[list[Any]]]) -> Sequence[Future[list[Any]]]:
        """Wait for the first that end."""
        return list(wait(handles, return_when=FIRST_COMPLETED).done)

    def result(self, handle: Future[list[Any]]) -> list[Any]:
        """Give what the work gave; which item broke a pool, nobody can tell."""
        try:
            return handle.result()
        except BrokenProcessPool as error:
            raise DiedError from error

    def begin_anew(self) -> None:
        """Let the processes end."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:  # Ctrl-C above all: what they do may take minutes
            for process in multiprocessing.active_children():
                if process not in self._others:
                    process.terminate()
        self.begin_anew()


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
