"""How a run tells what happens to its cells: drawn, printed or ignored by whoever listens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from recap.benchmark.cells import Cell


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: with a result, or with a problem."""

    cell: Cell
    auroc: float | None = None
    problem: str = ""
    seconds: float = 0.0
    """From start to end in this run; none for a cell that was there before."""


class Watcher(Protocol):
    """Told about a run, always from the thread that called `run_cells`."""

    def planned(self, cells: Sequence[Cell], present: Sequence[Outcome]) -> None:
        """All cells of the run, and those that had a result before it."""

    def started(self, cell: Cell) -> None:
        """A cell runs; twice for one whose process died, which is tried again."""

    def finished(self, outcome: Outcome) -> None:
        """A cell has a result or has failed for good."""


class Silent:
    """Looks away."""

    def planned(self, cells: Sequence[Cell], present: Sequence[Outcome]) -> None:
        """Say nothing."""

    def started(self, cell: Cell) -> None:
        """Say nothing."""

    def finished(self, outcome: Outcome) -> None:
        """Say nothing."""


silent: Watcher = Silent()
