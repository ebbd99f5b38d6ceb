"""Running the cells of a benchmark: those without a result, each kept as soon as it is done."""

import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from recap.benchmark.cells import Cell, is_done
from recap.data import Domain
from recap.data.exclusions import Exclusions
from recap.data.processes import process_pool
from recap.errors import RecapError

Progress = Callable[[int, int, str], None]
_DIED = "the process died: out of memory or killed. Run again with fewer --jobs."


@dataclass(frozen=True)
class Job:
    """A cell with what it needs; goes to another process."""

    cell: Cell
    domains: tuple[Domain, ...]
    out: Path
    exclude: Exclusions | None
    threads: int
    share_heads: bool = False

    def run(self) -> str:
        """Run the cell; returns what went wrong, or nothing."""
        import torch

        from recap.benchmark.run_cell import run_cell

        torch.set_num_threads(self.threads)
        try:
            run_cell(self.cell, self.domains, self.out, self.exclude, self.share_heads)
        except RecapError as error:
            return str(error)
        # A defect in one cell must not cost the others; the trace is what a report needs.
        except Exception:
            return traceback.format_exc(limit=-3)
        return ""


def run_cells(
    cells: Sequence[Cell],
    domains: Sequence[Domain],
    out: Path,
    *,
    jobs: int = 1,
    exclude: Exclusions | None = None,
    share_heads: bool = False,
    progress: Progress = lambda done, total, name: None,
) -> dict[str, str]:
    """Run what is missing, in `jobs` processes; returns the cells that failed and why."""
    import torch

    missing = [cell for cell in cells if not is_done(out, cell)]
    threads = max(1, torch.get_num_threads() // max(jobs, 1))
    todo = [Job(cell, tuple(domains), out, exclude, threads, share_heads) for cell in missing]
    finished = len(cells) - len(todo)
    failed: dict[str, str] = {}

    def count(job: Job, problem: str) -> None:
        nonlocal finished
        finished += 1
        if problem:
            failed[job.cell.name] = problem
        progress(finished, len(cells), job.cell.name)

    progress(finished, len(cells), "")
    if jobs <= 1:
        for job in todo:
            count(job, job.run())
    else:
        _in_processes(todo, jobs, count)
    return failed


def _in_processes(todo: list[Job], jobs: int, count: Callable[[Job, str], None]) -> None:
    waiting = todo[::-1]
    while waiting:
        flying: dict[Future[str], Job] = {}
        pool = process_pool(jobs, __name__)
        try:
            while waiting or flying:
                while waiting and len(flying) < jobs:
                    job = waiting.pop()
                    flying[pool.submit(job.run)] = job
                for future in wait(flying, return_when=FIRST_COMPLETED).done:
                    problem = future.result()
                    count(flying.pop(future), problem)
        except BrokenProcessPool:
            # Which of them killed it cannot be told; all are failures until the next run.
            for job in flying.values():
                count(job, _DIED)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
