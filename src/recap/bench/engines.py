"""Cells as work for an engine: this process, several of this machine, or a Ray cluster."""

import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from recap._process import Engine, run_each
from recap.bench.cells import Cell
from recap.data import Domain, Support
from recap.data.supports import Exclusions
from recap.errors import RecapError
from recap.threads import fixed_threads

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
    support: Support | None = None
    """What a few-shot cell is fitted on, drawn once for all that share it."""

    @property
    def head(self) -> Path:
        """The folder of a fit that serves several cells."""
        return self.out / "heads" / self.cell.fit_name

    def run(self) -> str:
        """Run the cell; returns what went wrong, or nothing."""
        from recap.bench.run_cell import run_cell

        options = (self.exclude, self.share_heads, self.support)
        try:
            with fixed_threads(self.threads):  # so that a cell comes out the same each time
                run_cell(self.cell, self.domains, self.out, *options)
        except RecapError as error:
            return str(error)
        # A defect in one cell must not cost the others; the trace is what a report needs.
        except Exception:
            return traceback.format_exc(limit=-3)
        return ""


Start = Callable[[Job], None]
End = Callable[[Job, str], None]


def run_jobs(todo: Sequence[Job], engine: Engine, start: Start, end: End) -> None:
    """Run cells where an engine does; results are written by whoever runs them."""
    if todo:
        todo[0].out.mkdir(parents=True, exist_ok=True)
    with closing(run_each(run_job, todo, engine, _died, start)) as problems:
        for job, problem in problems:
            end(job, problem)


def run_job(job: Job) -> str:
    """Run a cell, perhaps on another machine; returns what went wrong, or nothing."""
    if not job.out.is_dir():
        return (
            f"{job.out}: not there on {os.uname().nodename}. All machines must share this folder."
        )
    return job.run()


def _died(job: Job, reason: str) -> str:
    return reason or DIED
