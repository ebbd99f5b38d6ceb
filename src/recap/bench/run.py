"""Running the cells of a benchmark: those without a result, each kept as soon as it is done.

An engine does the work: this process, several of this machine, or a Ray cluster.
"""

import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from recap._cluster import RayCluster
from recap._process import Engine, Here, Processes, run_each
from recap.bench.cells import Cell, with_sources
from recap.bench.kept import is_done, place_of, read_result
from recap.bench.supports import Supports, refuse_other_images, refuse_other_supports
from recap.data import Domain, Support
from recap.data.supports import Exclusions
from recap.errors import InputError, RecapError, SettingsError
from recap.threads import fixed_threads


@dataclass(frozen=True)
class Outcome:
    """The end of a cell: a result, or a problem."""

    cell: Cell
    auroc: float | None = None
    problem: str = ""
    seconds: float = 0.0
    """From start to end in this run; none for a cell that was there before."""


class Watcher(Protocol):
    """Told about a run, always from the thread that called `run_cells`."""

    def planned(self, cells: Sequence[Cell], present: Sequence[Outcome]) -> None:
        """All cells of the run, and those that had a result before it."""

    def started(self, cell: Cell) -> None:
        """A cell runs; twice for one whose process died, which is tried again."""

    def finished(self, outcome: Outcome) -> None:
        """A cell has a result or has failed for good."""


class Silent:
    """Looks away."""

    def planned(self, cells: Sequence[Cell], present: Sequence[Outcome]) -> None:
        """Say nothing."""

    def started(self, cell: Cell) -> None:
        """Say nothing."""

    def finished(self, outcome: Outcome) -> None:
        """Say nothing."""


silent: Watcher = Silent()


ENGINES = ("local", "ray")
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


def run_cells(
    cells: Sequence[Cell],
    domains: Sequence[Domain],
    out: Path,
    *,
    jobs: int | None = None,
    exclude: Exclusions | None = None,
    share_heads: bool = False,
    watch: Watcher = silent,
    engine: str = "local",
    ray_address: str | None = None,
) -> dict[str, str]:
    """Run what is missing, `jobs` cells at once; returns the cells that failed and why.

    Without `jobs` one at once; on a cluster with an address, one on every GPU or machine. With
    `share_heads`, cells that differ in how they score alone share one fit.
    """
    run = _engine(engine, jobs, ray_address)
    cells = with_sources(cells, domains)
    done = [cell for cell in cells if is_done(out, cell)]
    refuse_other_images(_kept(out, done), domains, exclude)
    # The paths must hold in processes that stand elsewhere.
    here = tuple(replace(domain, root=domain.root.absolute()) for domain in domains)
    supports = Supports(here)
    refuse_other_supports(_kept(out, done), supports)
    present = [_outcome(out, cell) for cell in done]
    there = {outcome.cell.name for outcome in present}
    missing = [cell for cell in cells if cell.name not in there]
    todo = [
        replace(job, support=_support(job.cell, supports))
        for job in _jobs(missing, here, out, exclude, share_heads, jobs or 1)
    ]
    log = _RunLog(out, watch)
    watch.planned(cells, present)
    first, rest = _first_fits(todo) if share_heads else (todo, [])
    run(first, log)
    run(log.without_failed_fits(rest), log)
    return log.failed


def _engine(
    name: str, jobs: int | None, address: str | None
) -> Callable[[list[Job], "_RunLog"], None]:
    if name not in ENGINES:
        raise SettingsError(f"--engine {name}: use one of {', '.join(ENGINES)}.")
    if address is not None and name != "ray":
        raise SettingsError(f"--ray-address {address}: needs --engine ray.")

    def run(todo: list[Job], log: _RunLog) -> None:
        engine: Engine = Here() if jobs is None or jobs <= 1 else Processes(jobs)
        if name == "ray":
            if not todo:
                return
            workers = jobs or (None if address else 1)
            cluster = RayCluster(address, workers, (jobs or 1) * todo[0].threads)
            todo, engine = [replace(job, threads=cluster.threads) for job in todo], cluster
        run_jobs(todo, engine, log.start, log.end)

    return run


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


def _jobs(
    cells: Sequence[Cell],
    domains: tuple[Domain, ...],
    out: Path,
    exclude: Exclusions | None,
    share_heads: bool,
    workers: int,
) -> list[Job]:
    """Give each cell its share of this machine."""
    import torch

    threads = max(1, torch.get_num_threads() // max(workers, 1))
    folder = out.absolute()
    return [Job(cell, domains, folder, exclude, threads, share_heads) for cell in cells]


def _support(cell: Cell, supports: Supports) -> Support | None:
    try:
        return cell.support(supports)
    except InputError:  # the cell will tell, and costs only itself
        return None


def _first_fits(todo: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """One job for each fit that is still missing, and the rest: no fit is made twice at once."""
    first: dict[str, Job] = {}
    for job in todo:
        if not job.head.exists():
            first.setdefault(job.cell.fit_name, job)
    fitting = {job.cell.name for job in first.values()}
    return list(first.values()), [job for job in todo if job.cell.name not in fitting]


class _RunLog:
    """The log of a run, to which engines report: times of cells, and whether their results came."""

    def __init__(self, out: Path, watch: Watcher) -> None:
        self.failed: dict[str, str] = {}
        self._out, self._watch = out, watch
        self._since: dict[str, float] = {}
        self._failed_fits: dict[str, str] = {}

    def start(self, job: Job) -> None:
        self._since[job.cell.name] = time.monotonic()
        self._watch.started(job.cell)

    def end(self, job: Job, problem: str) -> None:
        cell = job.cell
        if not problem and not is_done(self._out, cell):
            problem = f"its result is not in {self._out}. All machines must share this folder."
        outcome = Outcome(cell, problem=problem) if problem else _outcome(self._out, cell)
        if problem:
            self.failed[cell.name] = problem
            self._failed_fits[cell.fit_name] = problem
        seconds = time.monotonic() - self._since[cell.name]
        self._watch.finished(replace(outcome, seconds=seconds))

    def without_failed_fits(self, todo: Sequence[Job]) -> list[Job]:
        """Leave what can still run; the others fail as their fit did."""
        lost = [job for job in todo if job.cell.fit_name in self._failed_fits]
        for job in lost:
            self.start(job)
            self.end(job, self._failed_fits[job.cell.fit_name])
        return [job for job in todo if job.cell.name not in self.failed]


def _outcome(out: Path, cell: Cell) -> Outcome:
    return Outcome(cell, read_result(out, cell.name)["metrics"].get("image_auroc"))


def _kept(out: Path, cells: Sequence[Cell]) -> Iterator[tuple[Path, dict[str, Any]]]:
    return ((place_of(out, cell.name), read_result(out, cell.name)) for cell in cells)
