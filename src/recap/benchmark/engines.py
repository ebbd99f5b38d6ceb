"""Where cells run: in this process, or several at once in processes of their own."""

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from recap.benchmark.cells import Cell
from recap.data import Domain
from recap.data.exclusions import Exclusions
from recap.data.processes import process_pool
from recap.errors import RecapError
from recap.threads import fix_threads

DIED = "its process died twice, the second time alone: out of memory, or killed."


@dataclass(frozen=True)
class Job:
    """A cell with what it needs; goes to another process."""

    cell: Cell
    domains: tuple[Domain, ...]
    out: Path
    exclude: Exclusions | None
    threads: int
    share_heads: bool = False

    @property
    def head(self) -> Path:
        """Where a fit that serves several cells is kept."""
        return self.out / "heads" / self.cell.fit_name

    def run(self) -> str:
        """Run the cell; returns what went wrong, or nothing."""
        from recap.benchmark.run_cell import run_cell

        fix_threads(self.threads)  # and no measurement: a cell comes out the same each time
        try:
            run_cell(self.cell, self.domains, self.out, self.exclude, self.share_heads)
        except RecapError as error:
            return str(error)
        # A defect in one cell must not cost the others; the trace is what a report needs.
        except Exception:
            return traceback.format_exc(limit=-3)
        return ""


Start = Callable[[Job], None]
End = Callable[[Job, str], None]


def run_here(todo: Sequence[Job], start: Start, end: End) -> None:
    """Run one cell after the other in this process."""
    for job in todo:
        start(job)
        end(job, job.run())


def run_in_processes(todo: Sequence[Job], workers: int, start: Start, end: End) -> None:
    """Run `workers` cells at once; those that were in the air when a process died, again alone."""
    for job in _run_all(todo, workers, start, end):
        if _run_all([job], 1, start, end):
            end(job, DIED)


def _run_all(todo: Sequence[Job], workers: int, start: Start, end: End) -> list[Job]:
    """Run all; returns those that may have killed their process. Which one did, nobody can tell."""
    waiting, broken = list(todo[::-1]), []
    while waiting:
        flying: dict[Future[str], Job] = {}
        with _pool(workers) as pool:
            try:
                while waiting or flying:
                    _fill(pool, workers, waiting, flying, start)
                    for future in wait(flying, return_when=FIRST_COMPLETED).done:
                        problem = future.result()
                        end(flying.pop(future), problem)
            except BrokenProcessPool:
                broken += _salvage(flying, end)
    return broken


def _fill(
    pool: Executor,
    workers: int,
    waiting: list[Job],
    flying: dict[Future[str], Job],
    start: Start,
) -> None:
    while waiting and len(flying) < workers:
        # Taken off the list after it is in the pool: one that has just broken takes nothing.
        future = pool.submit(waiting[-1].run)
        flying[future] = waiting.pop()
        start(flying[future])


def _salvage(flying: dict[Future[str], Job], end: End) -> list[Job]:
    """Keep what was done just before the pool broke; returns the rest."""
    whole = [future for future in flying if future.done() and future.exception() is None]
    for future in whole:
        end(flying.pop(future), future.result())
    return list(flying.values())


@contextmanager
def _pool(workers: int) -> Iterator[Executor]:
    """A pool whose processes end when the run is interrupted; else they go on for minutes."""
    others = multiprocessing.active_children()
    pool = process_pool(workers, __name__)
    try:
        yield pool
    except BaseException:  # Ctrl-C above all; goes on to the caller
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
