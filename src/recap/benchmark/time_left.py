"""How long a run of cells will still take, from the cells that it has finished."""

import heapq
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from statistics import fmean

from recap.benchmark.cells import Cell
from recap.benchmark.watch import Outcome


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
        """Seconds since the run began."""
        return self._clock() - self.began

    def running_for(self) -> dict[str, tuple[Cell, float]]:
        """The cells that run by name, the longest first, and for how many seconds."""
        now = self._clock()
        return {name: (cell, now - since) for name, (cell, since) in self.running.items()}

    def seconds(self) -> float | None:
        """Seconds until the last cell is done; None before the first one is."""
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
    """What cells can have in common, from the most telling to nothing at all."""
    encoder = cell.settings.encoder.name
    fit = (cell.method, cell.shots, encoder)
    return [(*fit, cell.dataset), fit, (cell.method, cell.shots), ()]
