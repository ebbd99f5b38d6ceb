"""Shards as tasks of a Ray cluster, each worker with detectors that it loads once.

Ray Data would carry every picture and map through its object store, whereas here each worker
reads and writes files that all machines share: names and numbers are all that travels.
"""

import platform
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from recap._cluster import RayCluster
from recap._files import scratch_folder
from recap._process import run_each, usable_cores
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
    cluster = RayCluster(address, jobs, max(jobs or 1, usable_cores()))
    count = max(1, min(cluster.slots * SHARDS_PER_WORKER, len(cases)))
    shards = [Shard(number, count) for number in range(1, count + 1)]
    # A page and a typed table are made of the whole.
    wanted = replace(request, report=False, parquet=False)
    work, done = ShardWork(wanted, cluster.threads), 0
    progress("score", 0, len(cases), "")
    with closing(run_each(work, shards, cluster, lambda shard, reason: reason)) as problems:
        for shard, problem in problems:
            if problem:
                raise RecapError(problem)
            done += sum(shard.holds(case.name) for case in cases)
            progress("score", done, len(cases), f"shard {shard}")


class ShardWork:
    """Scores shards on a machine: finds cases and loads detectors when its first shard comes."""

    def __init__(self, request: ScoreRequest, threads: int) -> None:
        self._request, self._threads = request, threads
        self._scratch: TemporaryDirectory[str] | None = None
        self._scoring: Scoring | None = None

    def __call__(self, shard: Shard) -> str:
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
        if self._scratch is not None:
            self._scratch.cleanup()

    def _start(self) -> Scoring:
        import torch

        for out in self._request.bundles.values():
            if not out.is_dir():
                raise RecapError(f"{out} is not there. All machines must share this folder.")
        torch.set_num_threads(self._threads)
        self._scratch = self._scratch or TemporaryDirectory(prefix="recap-")
        return Scoring(self._request, Path(self._scratch.name))
