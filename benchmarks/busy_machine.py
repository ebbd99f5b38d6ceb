"""How long fit, evaluate and demo take beside processes that want the same cores.

    python benchmarks/busy_machine.py DATA/Brain_AD [--before TREE] [--busy 0,2,6] [--runs 1]

Every time is that of the whole command, on weights that are there. `fair` is 1 + busy / cores: what
is left to a command of all cores if everybody gets the same. TREE is another working copy, such as
one made by `git worktree add TREE REVISION`; the two take turns. Run it on a machine where nothing
else runs, and leave OMP_NUM_THREADS and the like unset: with them set, they are what is measured.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from recap._process import usable_cores
from recap.threads import WAITING

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = 1.3
"""How much more than the fair time is still good."""
TESTED = 12
"""Test images of each class that are evaluated."""
BUSY = "while True: pass"


def main(
    dataset: Annotated[Path, typer.Argument(help="A <Name>_AD folder.")],
    before: Annotated[Path | None, typer.Option(help="A working copy to compare with.")] = None,
    busy: str = "0,2,6",
    shots: int = 2,
    runs: int = 1,
) -> None:
    """Print seconds, and how they compare with the idle ones and a fair share of the cores."""
    trees = {"before": before, "after": ROOT} if before else {"after": ROOT}
    loads = [int(count) for count in busy.split(",")]
    if loads[0] != 0:
        raise typer.BadParameter("--busy begins with 0: all are compared with the idle machine.")
    cores = usable_cores()
    print(f"{cores} cores, {shots}-shot fit, {2 * TESTED} images evaluated, demo of phantoms")
    print(f"{'':<10}{'busy':>5}{'seconds':>10}{'× idle':>9}{'fair':>7}{'allowed':>9}")
    with tempfile.TemporaryDirectory() as folder:
        some = part_of(dataset, Path(folder))
        idle: dict[tuple[str, str], float] = {}
        for name, arguments in commands(some, shots).items():
            for load in loads:
                seconds = timed(trees, arguments, load, runs, Path(folder))
                for tree, found in seconds.items():
                    first = idle.setdefault((name, tree), found)
                    fair = 1 + load / cores
                    row = f"{found:>10.1f}{found / first:>9.2f}{fair:>7.2f}{ALLOWED * fair:>9.2f}"
                    print(f"{name:<10}{load:>5}{row}  {tree}", flush=True)


def commands(dataset: Path, shots: int) -> dict[str, list[str]]:
    """What is timed, in the order in which one makes what the next needs."""
    return {
        "fit": ["fit", "--dataset", str(dataset), "--shots", str(shots), "--out", "a.recap"],
        "evaluate": ["evaluate", "a.recap", str(dataset)],
        "demo": ["demo", "--phantoms", "--out", "demo"],
    }


def part_of(dataset: Path, folder: Path) -> Path:
    """The same pool with few test images, so that a busy machine is done in minutes."""
    part = folder / dataset.name
    shutil.copytree(dataset, part, ignore=shutil.ignore_patterns("test"))
    for images in sorted((dataset / "test").rglob("img")):
        masks = images.parent / "anomaly_mask"
        for file in sorted(images.iterdir())[:TESTED]:
            for kind in (images, masks):
                if (kind / file.name).exists():
                    copy = part / (kind / file.name).relative_to(dataset)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(kind / file.name, copy)
    return part


def timed(
    trees: dict[str, Path], arguments: list[str], load: int, runs: int, folder: Path
) -> dict[str, float]:
    """Median seconds of a command in each tree, which take turns."""
    found: dict[str, list[float]] = {name: [] for name in trees}
    with beside(load):
        for _ in range(runs):
            for name, tree in trees.items():
                work = folder / name
                work.mkdir(exist_ok=True)
                found[name].append(seconds_of(tree, arguments, work))
    return {name: median(seconds) for name, seconds in found.items()}


def seconds_of(tree: Path, arguments: list[str], work: Path) -> float:
    """Run a command of a tree in a folder of its own."""
    if "--out" in arguments:
        shutil.rmtree(work / arguments[arguments.index("--out") + 1], ignore_errors=True)
    # What this script's own import of recap has set is not what the user has set.
    own = {name: value for name, value in os.environ.items() if name not in WAITING}
    started = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-m", "recap", *arguments],
        cwd=work,
        env={**own, "PYTHONPATH": str((tree / "src").resolve())},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise typer.BadParameter(f"recap {arguments[0]} failed: {run.stderr.strip()[-500:]}")
    return time.monotonic() - started


@contextmanager
def beside(load: int) -> Iterator[None]:
    """Run something beside that many processes that never wait."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(load)]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


if __name__ == "__main__":
    typer.run(main)
