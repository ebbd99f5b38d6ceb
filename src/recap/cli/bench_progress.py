"""A run of the benchmark as it goes: one line on a terminal, a line per cell elsewhere; then a
table of what came of it."""

import heapq
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from recap.bench.cells import Cell, how_far
from recap.bench.run import Outcome, Watcher
from recap.cli.terminal import STAGES
from recap.errors import counted

if TYPE_CHECKING:
    from rich.text import Text

QUIET_S = 300.0
"""After so long without a word a log says what the cells are at."""


@contextmanager
def watching(out: Path) -> Iterator[Watcher]:
    """Show the run in a folder on stderr while it goes, and its table at the end."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        line = RunLine(out)
        with Live(console=console, refresh_per_second=2, get_renderable=line.render):
            yield line
        shown: RunLine = line
    else:
        shown = RunLog(out)
        with _every(QUIET_S / 10, shown.still_there):
            yield shown
    if shown.outcomes:
        print(auroc_table(shown.outcomes), file=sys.stderr)


class RunLine:
    """For terminals: how far the run is, how long it will take, and what runs the longest."""

    def __init__(self, out: Path, times: "TimeLeft | None" = None) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._out = out
        self._times = times or TimeLeft()
        # Another thread draws, or says what is still there.
        self._lock = threading.Lock()

    def planned(self, cells: Sequence[Cell], present: Sequence[Outcome]) -> None:
        """Take in how much is to do."""
        with self._lock:
            self._times.planned(cells, present)
            self.outcomes = {outcome.cell.name: outcome for outcome in present}

    def started(self, cell: Cell) -> None:
        """Start a cell's clock."""
        with self._lock:
            self._times.started(cell)

    def finished(self, outcome: Outcome) -> None:
        """Take in what came of a cell."""
        with self._lock:
            self._times.finished(outcome)
            self.outcomes[outcome.cell.name] = outcome

    def render(self) -> "Text":
        """Draw the line as it stands; none before the run is planned."""
        from rich.text import Text

        with self._lock:
            times = self._times
            if not times.total:
                return Text()
            failed = sum(bool(outcome.problem) for outcome in self.outcomes.values())
            parts = [f"{times.done}/{times.total} cells in {clock(times.elapsed())}", left(times)]
            parts += [f"{failed} failed"] if failed else []
            for name, (cell, _) in list(times.running_for().items())[:1]:
                place = f"{cell.method} {cell.dataset} {cell.shots}-shot"
                parts.append(f"{place} seed {cell.settings.seed}{_steps(self._out, name)}")
            return Text(", ".join(parts), no_wrap=True, overflow="ellipsis")


class RunLog(RunLine):
    """For logs: one line for each cell that ends; and for those that run, if none does for long."""

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        self._said = time.monotonic()

    def planned(self, cells: Sequence[Cell], present: Sequence[Outcome]) -> None:
        """Say how much is to do."""
        super().planned(cells, present)
        self._say(f"{counted(len(cells), 'cell')}, {len(present)} of them done before.")

    def finished(self, outcome: Outcome) -> None:
        """Say what came of a cell and how long the others will take."""
        super().finished(outcome)
        result = f"image AUROC {percent(outcome.auroc)}"
        if outcome.problem:
            result = f"failed ({outcome.problem.strip().splitlines()[-1]})"
        with self._lock:
            count = f"{self._times.done}/{self._times.total}"
            spent = f"{outcome.seconds:.0f} s"
            self._say(f"{count} {outcome.cell.name}: {result}, {spent}, {left(self._times)}")

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


class TimeLeft:
    """Counts the cells of a run, and deals those to come out to as many slots as were seen busy."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[str, Cell] = {}
        self._spent: defaultdict[Hashable, list[float]] = defaultdict(list)
        self._slots = 1
        self.running: dict[str, tuple[Cell, float]] = {}
        self.began = clock()
        self.done = self.total = 0

    def planned(self, cells: Sequence[Cell], present: Sequence[Outcome]) -> None:
        """Results that were there before count as done; their times may be another machine's."""
        there = {outcome.cell.name for outcome in present}
        self._waiting = {cell.name: cell for cell in cells if cell.name not in there}
        self.done, self.total = len(there), len(cells)

    def started(self, cell: Cell) -> None:
        """Start a cell's clock."""
        self._waiting.pop(cell.name, None)
        self.running[cell.name] = (cell, self._clock())
        self._slots = max(self._slots, len(self.running))

    def finished(self, outcome: Outcome) -> None:
        """Learn from a cell's time, unless it failed: failures are quick."""
        self.running.pop(outcome.cell.name, None)
        self.done += 1
        for kind in () if outcome.problem else _kinds(outcome.cell):
            self._spent[kind].append(outcome.seconds)

    def elapsed(self) -> float:
        """Count the seconds since the run began."""
        return self._clock() - self.began

    def running_for(self) -> dict[str, tuple[Cell, float]]:
        """List the cells that run by name, the longest first, and for how many seconds."""
        now = self._clock()
        return {name: (cell, now - since) for name, (cell, since) in self.running.items()}

    def seconds(self) -> float | None:
        """Estimate the seconds until the last cell is done; None before the first one is."""
        if not self._spent and self.done < self.total:
            return None
        running = self.running_for().values()
        free = [max(0.0, self._expected(cell) - spent) for cell, spent in running]
        free += [0.0] * (self._slots - len(free))
        heapq.heapify(free)
        for cell in self._waiting.values():
            heapq.heapreplace(free, free[0] + self._expected(cell))
        return max(free)

    def _expected(self, cell: Cell) -> float:
        known = (self._spent[kind] for kind in _kinds(cell) if kind in self._spent)
        return fmean(next(known))


def _kinds(cell: Cell) -> list[Hashable]:
    """Name what cells can have in common, from the most telling to nothing at all."""
    encoder = cell.settings.encoder.name
    fit = (cell.method, cell.shots, encoder)
    return [(*fit, cell.dataset), fit, (cell.method, cell.shots), ()]


def auroc_table(outcomes: dict[str, Outcome]) -> str:
    """Lay out the mean image AUROC of each method, data set and number of shots, in %."""
    scores: dict[tuple[str, str], dict[int, list[float]]] = {}
    for outcome in outcomes.values():
        cell = outcome.cell
        own = scores.setdefault((cell.method, cell.dataset), {}).setdefault(cell.shots, [])
        own += [] if outcome.auroc is None else [outcome.auroc]
    shots = sorted({count for row in scores.values() for count in row})
    lines = [["method", "data set", *(f"{count}-shot" for count in shots)]]
    for (method, dataset), row in scores.items():
        means = [percent(fmean(row[n]) if row.get(n) else None) for n in shots]
        lines.append([method, dataset, *means])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ("  ".join(_aligned(line, widths)).rstrip() for line in lines)
    return "\n".join(["image AUROC in %, mean over the cells that are done", *shown])


def _aligned(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    cells = zip(line, widths, strict=True)
    return [text.ljust(w) if n < 2 else text.rjust(w) for n, (text, w) in enumerate(cells)]


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
    """Say what the cell of a name is at; nothing if that is not known."""
    at = how_far(out, name)
    return "" if at is None else f", {STAGES.get(at.stage, at.stage).lower()} {at.done}/{at.total}"


def left(times: TimeLeft) -> str:
    """Say how long a run will still take."""
    if times.done == times.total:
        return "all done"
    seconds = times.seconds()
    return "time left not known yet" if seconds is None else f"about {clock(seconds)} left"


def clock(seconds: float) -> str:
    """Write hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


def percent(score: float | None) -> str:
    """Write a score as in the tables."""
    return "–" if score is None else f"{100 * score:.1f}"
