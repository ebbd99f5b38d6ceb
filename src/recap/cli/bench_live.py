"""A run of the benchmark as it goes: a live table on a terminal, lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING

from recap.benchmark.cell_progress import how_far
from recap.benchmark.cells import Cell
from recap.benchmark.experiments import flat_settings
from recap.benchmark.time_left import TimeLeft
from recap.benchmark.watch import Outcome, Watcher
from recap.cli.bars import STAGES
from recap.cli.bench_board import (
    Entries,
    Entry,
    clock,
    draw_board,
    left,
    percent,
)
from recap.words import counted

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


_SHOWN_RUNNING = 4
QUIET_S = 300.0
"""After so long without a word a log says what the cells are at."""


@contextmanager
def watching(out: Path) -> Iterator[Watcher]:
    """Show the run in a folder on stderr while it goes."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        lines = Lines(out)
        with _every(QUIET_S / 10, lines.still_there):
            yield lines
        return
    board = Board(console, out)
    with Live(console=console, refresh_per_second=2, get_renderable=board.render):
        yield board


@contextmanager
def _every(seconds: float, call: Callable[[], None]) -> Iterator[None]:
    """Call something again and again meanwhile."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(seconds):
            call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _steps(out: Path, name: str) -> str:
    """What the cell of a name is at, in words; nothing if that is not known."""
    at = how_far(out, name)
    return "" if at is None else f", {STAGES.get(at.stage, at.stage).lower()} {at.done}/{at.total}"


class Lines:
    """For logs: one line for each cell that ends; and for those that run, if none does for long."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._times = TimeLeft()
        self._said = time.monotonic()
        # A thread of its own says what is still there.
        self._lock = threading.Lock()

    def planned(self, cells: Sequence[Cell], present: Sequence[Outcome]) -> None:
        """Say how much is to do."""
        with self._lock:
            self._times.planned(cells, present)
            self._say(f"{counted(len(cells), 'cell')}, {len(present)} of them done before.")

    def started(self, cell: Cell) -> None:
        """Say nothing; a line comes when the cell ends."""
        with self._lock:
            self._times.started(cell)

    def finished(self, outcome: Outcome) -> None:
        """Say what came of a cell and how long the others will take."""
        what = f"image AUROC {percent(outcome.auroc)}"
        if outcome.problem:
            what = f"failed ({outcome.problem.strip().splitlines()[-1]})"
        with self._lock:
            self._times.finished(outcome)
            count = f"{self._times.done}/{self._times.total}"
            spent = f"{outcome.seconds:.0f} s"
            self._say(f"{count} {outcome.cell.name}: {what}, {spent}, {left(self._times)}")

    def still_there(self) -> None:
        """Say what the cells are at, unless something was said just now."""
        with self._lock:
            if time.monotonic() - self._said < QUIET_S:
                return
            for name, (_, spent) in self._times.running_for().items():
                self._say(f"… {name} for {clock(spent)}{_steps(self._out, name)}")

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        print(line, file=sys.stderr, flush=True)


class Board:
    """For terminals: a row per method and data set, a column per number of shots."""

    def __init__(self, console: "Console", out: Path, times: TimeLeft | None = None) -> None:
        self._console = console
        self._out = out
        self._times = times or TimeLeft()
        # Names are digests of all settings: too dear to ask for at every drawing.
        self._cells: dict[str, Cell] = {}
        self._variants: dict[str, str] = {}
        self._outcomes: dict[str, Outcome] = {}
        # The table is drawn by a thread of its own.
        self._lock = threading.Lock()

    def planned(self, cells: Sequence[Cell], present: Sequence[Outcome]) -> None:
        """Lay out the table."""
        with self._lock:
            self._times.planned(cells, present)
            self._cells = {cell.name: cell for cell in cells}
            self._variants = variants(self._cells)
            self._outcomes = {outcome.cell.name: outcome for outcome in present}

    def started(self, cell: Cell) -> None:
        """Mark a cell as running."""
        with self._lock:
            self._times.started(cell)

    def finished(self, outcome: Outcome) -> None:
        """Enter what came of a cell."""
        with self._lock:
            self._times.finished(outcome)
            self._outcomes[outcome.cell.name] = outcome

    def render(self) -> "RenderableType":
        """The table as it stands."""
        with self._lock:
            if not self._cells:
                return ""
            size = self._console.size
            running = [
                f"{cell.method} {cell.dataset} {cell.shots}-shot seed {cell.settings.seed} "
                f"for {clock(spent)}{_steps(self._out, name)}"
                for name, (cell, spent) in islice(self._times.running_for().items(), _SHOWN_RUNNING)
            ]
            return draw_board(self._entries(), self._times, running, size.width, size.height)

    def _entries(self) -> Entries:
        entries: Entries = {}
        for name, cell in self._cells.items():
            row = (cell.method, self._variants[name], cell.dataset)
            entry = entries.setdefault(row, {}).setdefault(cell.shots, Entry())
            entry.total += 1
            entry.running |= name in self._times.running
            outcome = self._outcomes.get(name)
            if outcome and outcome.problem:
                entry.failed = True
            elif outcome:
                entry.done += 1
                entry.scores += [] if outcome.auroc is None else [outcome.auroc]
        blocks = list(dict.fromkeys(row[:2] for row in entries))
        return dict(sorted(entries.items(), key=lambda item: blocks.index(item[0][:2])))


def variants(cells: dict[str, Cell]) -> dict[str, str]:
    """By name, the settings in which the cells of a method differ; seeds are no variants."""
    labels: dict[str, str] = {}
    by_method = sorted(cells.items(), key=lambda item: item[1].method)
    for _, group in groupby(by_method, key=lambda item: item[1].method):
        flat = {
            name: dict(flat_settings(cell.settings.model_dump(mode="json"))) for name, cell in group
        }
        values = list(flat.values())
        keys = [key for key in values[0] if any(v.get(key) != values[0][key] for v in values)]
        for name, settings in flat.items():
            parts = (
                f"{key.rpartition('.')[2]}={settings.get(key)}" for key in keys if key != "seed"
            )
            labels[name] = " ".join(parts)
    return labels
