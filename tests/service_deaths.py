"""The life of one job, killed by SIGKILL at every single step: run as a process of its own.

A step is a statement of SQL, an fsync or a rename. After each death the data folder is opened
again, as a restart does, and the job must be there if it was accepted, and end exactly once.
"""

import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recap.server import workers
from recap.server.jobs import Jobs, NewJob
from recap.server.metrics import Metrics
from recap.server.settings import ServerSettings
from recap.server.store import Store

ID = "a" * 32


class Detectors:
    """Stands for the bundles: nothing is loaded."""

    def folder(self, name: str) -> Path:
        return Path(name)

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
    opened = Store.__init__

    def open_traced(self: Store, root: Path) -> None:
        opened(self, root)
        self._connection.set_trace_callback(lambda statement: step())

    Store.__init__ = open_traced  # type: ignore[method-assign]


def live(root: Path) -> None:
    """From an upload to a result, or from wherever the last life ended."""
    store = Store(root / "data")
    jobs = Jobs(store, 5)
    jobs.recover()
    store.sweep()
    if jobs.get(ID) is None and not (root / "accepted").exists():
        upload = store.incoming(ID) / "upload"
        upload.mkdir(parents=True)
        (upload / "000000.png").write_bytes(b"pixels")
        jobs.accept(NewJob(ID, "score", "b", {}, {}, 1))
        (root / "accepted").touch()
    settings = ServerSettings(bundles=(), data=root / "data")
    worker: Any = workers.Workers(settings, jobs, Detectors(), Metrics())  # type: ignore[arg-type]
    while claimed := jobs.claim("score"):
        worker._run(claimed)
    store.close()


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
    """After the last life: one job, done, with one whole result and nothing else."""
    store = Store(root / "data")
    jobs = Jobs(store, 5)
    store.sweep()
    job = jobs.get(ID)
    folder = store.job_folder(ID)
    assert job is not None, steps
    assert job.status == "done", (steps, job.status)
    assert {path.name for path in folder.iterdir()} == {"upload", job.result}, steps
    assert (folder / job.result / "result.json").stat().st_size == 2000, steps
    assert list((store.root / "incoming").iterdir()) == [], steps
    assert [path.name for path in (store.root / "jobs").iterdir()] == [ID], steps
    store.close()


def main() -> None:
    """Every single death, then pairs of them."""
    sys.modules["recap.server.scoring"] = type(sys)("scoring")
    sys.modules["recap.server.scoring"].score_job = score_job  # type: ignore[attr-defined]
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
