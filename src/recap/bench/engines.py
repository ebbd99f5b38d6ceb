"""Where cells run: in this process, several at once in processes of their own, or as tasks of a Ray
cluster: one on this machine, or one that is there already.
"""

import logging
import multiprocessing
import os
import signal
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from recap._process import process_pool
from recap.bench.cells import Cell
from recap.data import Domain, Support
from recap.data.supports import Exclusions
from recap.errors import InputError, RecapError, require
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
    support: Support | None = None
    """What a few-shot cell is fitted on, drawn once for all that share it."""

    @property
    def head(self) -> Path:
        """Where a fit that serves several cells is kept."""
        return self.out / "heads" / self.cell.fit_name

    def run(self) -> str:
        """Run the cell; returns what went wrong, or nothing."""
        from recap.bench.run_cell import run_cell

        fix_threads(self.threads)  # and no measurement: a cell comes out the same each time
        try:
            options = (self.exclude, self.share_heads, self.support)
            run_cell(self.cell, self.domains, self.out, *options)
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


# Paths and numbers travel, images do not; Ray would reserve a third of the memory.
_STORE_BYTES = 100 * 1024**2
_ANSWER_S = 10


def run_on_ray(
    todo: Sequence[Job], workers: int | None, start: Start, end: End, address: str | None = None
) -> None:
    """Run `workers` cells at once on a cluster; those whose worker died, again alone.

    Results are written by the workers, so data and results must lie in folders that all machines
    share, under the same path. Without an address, a cluster of this machine lives for this run.
    Without a number of workers, that one has a single worker, and another fills its machines.
    """
    if not todo:
        return
    todo[0].out.mkdir(parents=True, exist_ok=True)
    ray = connect(address, (workers or 1) * todo[0].threads)
    try:
        share = share_of_cluster(ray, workers or (machine_count(ray) if address else 1))
        for job in _run_on_cluster(ray, todo, share, start, end):
            if _run_on_cluster(ray, [job], replace(share, slots=1), start, end):
                end(job, DIED)
    finally:
        ray.shutdown()


def connect(address: str | None, processors: int) -> Any:
    """Ray, connected to a cluster, or to one that is started here for the while."""
    # Read when Ray is imported: the machines' facts are nobody's business.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = require("ray", "ray")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"num_cpus": processors, "include_dashboard": False}
        options |= {"address": "local", "object_store_memory": _STORE_BYTES}
    else:
        _check_address(address)
        options["address"] = address
    ending = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    # Ray raises plain exceptions too, as when a node does not start in time.
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise RecapError(
            f"Ray did not start: {reason} Run again, or with --engine local."
        ) from error
    # Ray makes it wait for services that are not here; a signal ends the caller in its own way.
    if signal.getsignal(signal.SIGTERM) is not ending:
        signal.signal(signal.SIGTERM, ending)
    return ray


def _check_address(address: str) -> None:
    """Fail at once where nothing answers; Ray itself would go on trying for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"--ray-address {address}: no Ray cluster answers ({error}). Give HOST:PORT of its "
            "head, or leave the option out for a cluster on this machine."
        ) from error


@dataclass(frozen=True)
class Share:
    """What a cell gets of the cluster, and how many cells that leaves room for."""

    threads: int
    gpus: float
    slots: int


def machine_count(ray: Any) -> int:
    """How many workers fill a cluster: one per GPU or, without GPUs, one per machine."""
    machines = _machines(ray)
    return int(sum(machine.get("GPU", 0) for machine in machines)) or len(machines)


def share_of_cluster(ray: Any, workers: int) -> Share:
    """The most threads with which that many cells find room; a cell stays on one machine."""
    machines = _machines(ray)
    processors = [int(machine.get("CPU", 0)) for machine in machines]

    def room(threads: int) -> int:
        return sum(count // threads for count in processors)

    sizes = range(1, max(processors, default=0) + 1)
    threads = max((size for size in sizes if room(size) >= workers), default=1)
    gpus = sum(machine.get("GPU", 0) for machine in machines)
    # Ray hides the GPUs from tasks that ask for none.
    part = 1 / ceil(workers / gpus) if gpus else 0
    return Share(threads, part, max(1, min(workers, room(threads))))


def _machines(ray: Any) -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _run_on_cluster(
    ray: Any, todo: Sequence[Job], share: Share, start: Start, end: End
) -> list[Job]:
    """Run all; returns those whose worker died."""
    task = ray.remote(num_cpus=share.threads, num_gpus=share.gpus, max_retries=0)(_run_there)
    waiting, broken = list(todo[::-1]), []
    flying: dict[Any, Job] = {}
    while waiting or flying:
        while waiting and len(flying) < share.slots:
            job = replace(waiting.pop(), threads=share.threads)
            flying[task.remote(job, Path.cwd())] = job
            start(job)
        for reference in ray.wait(list(flying))[0]:
            job = flying.pop(reference)
            try:
                end(job, ray.get(reference))
            except ray.exceptions.RayTaskError as error:
                end(job, str(error).strip().splitlines()[-1])
            except ray.exceptions.RayError:
                broken.append(job)
    return broken


def _run_there(job: Job, folder: Path) -> str:
    """Runs on the cluster. Settings may name an encoder by a path from the folder of the caller."""
    with suppress(OSError):
        os.chdir(folder)
    if not job.out.is_dir():
        return (
            f"{job.out}: not there on {os.uname().nodename}. All machines must share this folder."
        )
    return job.run()
