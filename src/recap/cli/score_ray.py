"""Shards as tasks of a Ray cluster, each worker with detectors that it loads once.

Ray Data would carry every picture and map through its object store, whereas here each worker
reads and writes files that all machines share: names and numbers are all that travels.
"""

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from recap._files import scratch_folder
from recap._process import usable_cores
from recap.bench.engines import connect, machine_count, share_of_cluster
from recap.data.cases import Found
from recap.errors import RecapError
from recap.progress import Progress, silent
from recap.results.table import Shard
from recap.score_request import ScoreRequest, Scoring

SHARDS_PER_WORKER = 4
"""More than one, so that a fast worker takes over from a slow one."""


def score_on_ray(
    request: ScoreRequest,
    jobs: int | None,
    address: str | None,
    progress: Progress,
) -> None:
    """Score all cases in shards; their tables lie beside each other afterwards.

    What a worker that died left undone is left to the caller.
    """
    request.check()
    with scratch_folder() as scratch:
        cases = Scoring(request, scratch).search.cases
    for out in request.bundles.values():
        out.mkdir(parents=True, exist_ok=True)
    ray = connect(address, max(jobs or 1, usable_cores()))
    try:
        share = share_of_cluster(ray, jobs or machine_count(ray))
        worker = ray.remote(num_cpus=share.threads, num_gpus=share.gpus)(Worker)
        # A page and a typed table are made of the whole.
        wanted = replace(request, report=False, parquet=False)
        workers = [worker.remote(wanted, Path.cwd(), share.threads) for _ in range(share.slots)]
        count = max(1, min(share.slots * SHARDS_PER_WORKER, len(cases)))
        shards = [Shard(number, count) for number in range(1, count + 1)]
        _score_all(ray, workers, shards, cases, progress)
    finally:
        ray.shutdown()


def _score_all(
    ray: Any,
    idle: list[Any],
    shards: Sequence[Shard],
    cases: Sequence[Found],
    progress: Progress,
) -> None:
    waiting, done = list(shards[::-1]), 0
    flying: dict[Any, tuple[Any, Shard]] = {}
    progress("score", 0, len(cases), "")
    while waiting or flying:
        while waiting and idle:
            worker, shard = idle.pop(), waiting.pop()
            flying[worker.score.remote(shard)] = (worker, shard)
        if not flying:  # all workers died
            return
        for reference in ray.wait(list(flying))[0]:
            worker, shard = flying.pop(reference)
            try:
                problem = ray.get(reference)
            except ray.exceptions.RayActorError:
                continue
            if problem:
                raise RecapError(problem)
            idle.append(worker)
            done += sum(shard.holds(case.name) for case in cases)
            progress("score", done, len(cases), f"shard {shard}")
    ray.get([worker.close.remote() for worker in idle])


class Worker:
    """Lives on the cluster: finds the cases and loads the detectors when its first shard comes."""

    def __init__(self, request: ScoreRequest, folder: Path, threads: int) -> None:
        # Paths may be relative to the folder of the caller.
        with suppress(OSError):
            os.chdir(folder)
        self._request, self._threads = request, threads
        self._scratch = TemporaryDirectory(prefix="recap-")
        self._scoring: Scoring | None = None

    def score(self, shard: Shard) -> str:
        """Score a shard; returns why that cannot be done here, or nothing."""
        try:
            if self._scoring is None:
                self._scoring = self._start()
            self._scoring.score(shard, silent)
        except RecapError as error:
            return f"On {platform.node()}: {error}"
        return ""

    def close(self) -> None:
        """Remove what was unpacked or encoded on this machine."""
        self._scratch.cleanup()

    def _start(self) -> Scoring:
        import torch

        for out in self._request.bundles.values():
            if not out.is_dir():
                raise RecapError(f"{out} is not there. All machines must share this folder.")
        torch.set_num_threads(self._threads)
        return Scoring(self._request, Path(self._scratch.name))
