"""The lives of three jobs, killed by SIGKILL at every single step: run as a process of its own.

A step is a statement of SQL, an fsync, a rename or the removal of a folder. After each death the
data folder is opened again, as a restart does, which must not take what was left for another's. A
job that is scored must be there if it was accepted, and end exactly once; one that is deleted, and
a bundle that is made twice and deleted, must leave nothing.
"""

import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from recap.service import bundles, workers
from recap.service.jobs import Jobs, NewJob
from recap.service.metrics import Metrics
from recap.service.settings import ServerSettings
from recap.service.store import Store

ID, DELETED, FITTED, AGAIN = "a" * 32, "b" * 32, "c" * 32, "d" * 32


class Detectors:
    """Stands for the bundles: nothing is loaded."""

    def bundle(self, name: str) -> str:
        return name

    def folders(self) -> dict[str, Path]:
        return {}

    def detector(self, name: str) -> None:
        return None


def score_job(job: Any, detector: Any, folder: Path, out: Path, *_: Any) -> dict[str, Any]:
    """Stands for scoring: one file, whole only if nothing killed it."""
    assert (folder / "upload" / "000000.png").read_bytes() == b"pixels"
    (out / "result.json").write_bytes(b"{}" * 1000)
    return {"count": 1}


def dying_after(steps: int) -> None:
    """Count steps from now on, and die at the last."""
    left = [steps]

    def step() -> None:
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            step()
            return function(*arguments, **named)

        return call

    os.fsync = counted(os.fsync)
    Path.rename = counted(Path.rename)  # type: ignore[method-assign]
    shutil.rmtree = counted(shutil.rmtree)  # type: ignore[assignment]
    opened = Store.__init__

    def open_traced(self: Store, root: Path) -> None:
        opened(self, root)
        self._connection.set_trace_callback(lambda statement: step())

    Store.__init__ = open_traced  # type: ignore[method-assign]


def live(root: Path) -> None:
    """From uploads to their ends, or from wherever the last life ended."""
    store = Store(root / "data")
    jobs = Jobs(store, 5)
    jobs.recover()
    store.sweep()
    settings = ServerSettings(bundles=(), data=root / "data")
    worker: Any = workers.Workers(settings, jobs, Detectors(), Metrics())  # type: ignore[arg-type]
    worker._fit = partial(fit, worker)
    for job in (ID, DELETED):
        accept(root, jobs, NewJob(job, "score", "b", {}, {}, 1))
    for job in (FITTED, AGAIN):
        accept(root, jobs, NewJob(job, "fit", "mine", {}, {}, 1))
    for lane in ("score", "fit"):
        while claimed := jobs.claim(lane):
            worker._run(claimed)
    jobs.delete(DELETED)
    bundles.Bundles(settings, store).remove("mine")
    store.close()


def accept(root: Path, jobs: Jobs, new: NewJob) -> None:
    """Upload a job, unless a client was told that it was accepted."""
    told = root / new.id
    if jobs.get(new.id) is None and not told.exists():
        upload = jobs.store.incoming(new.id) / "upload"
        upload.mkdir(parents=True)
        (upload / "000000.png").write_bytes(b"pixels")
        jobs.accept(new)
    told.touch()


def fit(worker: Any, job: Any, _: list[Any]) -> bool:
    """Stands for fitting: the second bundle takes the place of the first."""
    folder = worker._jobs.store.job_folder(job.id) / f"working-{job.attempt}"
    bundle = worker._new_folder(folder) / "bundle"
    bundle.mkdir()
    (bundle / "head").write_bytes(b"numbers")
    return bool(worker._add_bundle(job, bundle, "mine", replace=True))


def killed_at(root: Path, step: int | None) -> bool:
    """Live in a child that dies at a step; true if it did."""
    child = os.fork()
    if child == 0:
        if step is not None:
            dying_after(step)
        live(root)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, f"step {step}: exit {os.WEXITSTATUS(status)}"
    return False


def check(root: Path, steps: list[int]) -> None:
    """After the last life: one job, done, with one whole result; what was deleted is gone."""
    store = Store(root / "data")
    jobs = Jobs(store, 5)
    store.sweep()
    job = jobs.get(ID)
    folder = store.job_folder(ID)
    assert job is not None, steps
    assert job.status == "done", (steps, job.status)
    assert {path.name for path in folder.iterdir()} == {"job.json", "upload", job.result}, steps
    assert (folder / job.result / "result.json").stat().st_size == 2000, steps
    kept = {path.name for path in (store.root / "jobs").iterdir()}
    assert kept == {ID, FITTED, AGAIN}, (steps, kept)
    assert jobs.get(DELETED) is None, steps
    for empty in ("incoming", "bundles"):
        left = [str(path) for path in (store.root / empty).rglob("*")]
        assert left == [], (steps, left)
    store.close()


def main() -> None:
    """Every single death, then pairs of them."""
    sys.modules["recap.service.work"] = type(sys)("work")
    sys.modules["recap.service.work"].score_job = score_job  # type: ignore[attr-defined]
    bundles.served_names = lambda folders: {}  # only what was made here
    total = 0
    memory = Path("/dev/shm")  # deaths of a process, not of a disk
    where = memory if memory.is_dir() else None
    for step in range(1, 10_000):
        with tempfile.TemporaryDirectory(dir=where) as root:
            died = killed_at(Path(root), step)
            assert not killed_at(Path(root), None)
            check(Path(root), [step])
        if not died:
            break
        total = step
    pairs = random.Random(0)
    for _ in range(30):
        with tempfile.TemporaryDirectory(dir=where) as root:
            steps = [pairs.randint(1, total), pairs.randint(1, total)]
            for step in steps:
                killed_at(Path(root), step)
            assert not killed_at(Path(root), None)
            check(Path(root), steps)
    print(f"{total} steps")


if __name__ == "__main__":
    main()
