"""Worker processes that leave Ctrl-C to their parent and never outlive it, and cores for them."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import BaseContext

from recap.allocator import keep_freed_memory


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


def _start() -> None:
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A killed parent cannot tell its children to stop.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
