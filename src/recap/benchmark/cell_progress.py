"""How far a cell is, noted in a file: it may run in another process or on another machine.

A cell may take an hour; whoever waits for it should see that it gets on.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from recap.atomic import write_atomic
from recap.errors import InputError
from recap.progress import Progress

EVERY_S = 1.0
_FILE = "progress.json"


@dataclass(frozen=True)
class HowFar:
    """Steps of a stage that are done, of so many."""

    stage: str
    done: int
    total: int


def work_folder(out: Path, name: str) -> Path:
    """Where the cell of a name keeps what an interrupted fit goes on from."""
    return out / "work" / name


def noting(work: Path, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Notes every stage when it begins, and then once a second."""
    noted, due = "", 0.0

    def note(stage: str, done: int, total: int, detail: str) -> None:
        nonlocal noted, due
        if stage == noted and clock() < due:
            return
        noted, due = stage, clock() + EVERY_S
        with suppress(InputError):  # where nothing can be written, the fit itself will say so
            write_atomic(work / _FILE, json.dumps(asdict(HowFar(stage, done, total))))

    return note


def how_far(out: Path, name: str) -> HowFar | None:
    """What was noted last of the cell of a name, if anything was."""
    try:
        return HowFar(**json.loads((work_folder(out, name) / _FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
