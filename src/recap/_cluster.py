"""A Ray cluster as an engine: one that is there already, or one of this machine for the while.

Paths and numbers travel, images do not: data and results lie in folders that all machines share,
under the same path.
"""

import logging
import os
import signal
import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Self

from recap._process import DiedError
from recap.errors import InputError, RecapError, require

# Ray would reserve a third of the memory.
_STORE_BYTES = 100 * 1024**2
_ANSWER_S = 10


class RayCluster:
    """Workers of a cluster that live as long as this, each with its own copy of the work.

    Args:
        address: HOST:PORT of the head; without one a cluster of this machine is started.
        workers: How many; without a number, as many as fill the machines.
        processors: What a cluster of this machine is to have.
    """

    def __init__(self, address: str | None, workers: int | None, processors: int) -> None:
        self._ray = connect(address, processors)
        try:
            self._share = share_of_cluster(self._ray, workers or machine_count(self._ray))
        except BaseException:
            self._ray.shutdown()
            raise
        self.slots, self.threads = self._share.slots, self._share.threads
        self._idle: list[Any] = []
        self._busy: dict[Any, Any] = {}

    def submit(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Any:
        """Give items to a worker that has nothing to do, or to a new one."""
        worker = self._idle.pop() if self._idle else self._new(work)
        handle = worker.run.remote(items)
        self._busy[handle] = worker
        return handle

    def wait(self, handles: Collection[Any]) -> Sequence[Any]:
        """Wait for the first that end."""
        ended: list[Any] = self._ray.wait(list(handles))[0]
        return ended

    def result(self, handle: Any) -> list[Any]:
        """Give what the work gave; a worker that died is not asked again."""
        worker, failures = self._busy.pop(handle), self._ray.exceptions
        try:
            results: list[Any] = self._ray.get(handle)
        except failures.RayTaskError as error:
            self._idle.append(worker)
            raise DiedError(str(error).strip().splitlines()[-1]) from error
        except failures.RayError as error:
            raise DiedError from error
        self._idle.append(worker)
        return results

    def begin_anew(self) -> None:
        """Let the workers end."""
        self._ray.get([worker.close.remote() for worker in self._idle])
        for worker in self._idle:
            self._ray.kill(worker)
        self._idle.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self.begin_anew()
        finally:
            self._ray.shutdown()

    def _new(self, work: Callable[[Any], Any]) -> Any:
        options = {"num_cpus": self._share.threads, "num_gpus": self._share.gpus}
        return self._ray.remote(**options)(Worker).remote(work, Path.cwd())


class Worker:
    """Lives on the cluster, with a copy of the work that may keep things between items."""

    def __init__(self, work: Callable[[Any], Any], folder: Path) -> None:
        with suppress(OSError):  # paths may be relative to the folder of the caller
            os.chdir(folder)
        self._work = work

    def run(self, items: Sequence[Any]) -> list[Any]:
        """Do the work."""
        return [self._work(item) for item in items]

    def close(self) -> None:
        """Let the work remove what it left on this machine."""
        if close := getattr(self._work, "close", None):
            close()


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
