"""What the live table of a benchmark run looks like; it fits the terminal it is drawn on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import fmean
from typing import TYPE_CHECKING

from recap.benchmark.time_left import TimeLeft
from recap.data.benchmark import PAPER_NAMES

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

RUNNING, FAILED = "▸", "✗"
_SHORTEST_NAME = 7
# Head and rule of the table, its note, the bar, and the line the cursor is on.
_FRAME_LINES = 5

Row = tuple[str, str, str]
"""Method, what is special about its settings, data set."""


@dataclass
class Entry:
    """One place of the table: the seeds of one row and one number of shots."""

    total: int = 0
    done: int = 0
    running: bool = False
    failed: bool = False
    scores: list[float] = field(default_factory=list)

    def text(self, counted: bool) -> "Text":
        """Mean score, how many are done, marks."""
        from rich.text import Text

        score = percent(fmean(self.scores) if self.scores else None)
        text = Text(f"{score:>5} {self.done}/{self.total}" if counted else f"{score:>5}")
        text.append(RUNNING if self.running else " ", style="cyan")
        return text.append(FAILED if self.failed else " ", style="bold red")


Entries = dict[Row, dict[int, Entry]]


def draw_board(
    entries: Entries, times: TimeLeft, running: Sequence[str], width: int, height: int
) -> "RenderableType":
    """The table, lines on cells that run and how many more there are, and the time left."""
    from rich.console import Group
    from rich.text import Text

    lines = [f"{RUNNING} {line}" for line in running]
    if len(times.running) > len(running):
        lines.append(f"{RUNNING} and {len(times.running) - len(running)} more")
    kept = _fitting(entries, max(1, height - _FRAME_LINES - len(lines)))
    note = f"image AUROC in %, mean of the cells done; {RUNNING} running, {FAILED} failed"
    if len(kept) < len(entries):
        note = f"… {len(entries) - len(kept)} more rows; {note}"
    return Group(
        _table(kept, width),
        Text(note, style="dim", no_wrap=True, overflow="ellipsis"),
        *(Text(line, style="cyan", no_wrap=True, overflow="ellipsis") for line in lines),
        _bar(times, width),
    )


def _fitting(entries: Entries, room: int) -> Entries:
    """The rows there is room for, those where something happens before the others."""

    def is_quiet(row: Row) -> bool:
        return not any(entry.running or entry.failed for entry in entries[row].values())

    chosen = set(sorted(entries, key=is_quiet)[:room])
    return {row: places for row, places in entries.items() if row in chosen}


def _table(entries: Entries, width: int) -> "RenderableType":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    special = any(variant for _, variant, _ in entries)
    names = 3 if special else 2
    for counted in (True, False):
        head, *lines = _grid(entries, special, counted)
        sizes = _sizes([head, *lines], names, width)
        if sum(sizes) + len(sizes) - 1 <= width:
            break
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    for title, size in zip(head, sizes, strict=True):
        table.add_column(title, no_wrap=True, overflow="ellipsis", width=size)
    for line in lines:
        table.add_row(*line)
    return table


def _grid(entries: Entries, special: bool, counted: bool) -> list[list["Text"]]:
    """The table as text, its head first; the column of settings only where some are special."""
    from rich.text import Text

    shots = sorted({count for places in entries.values() for count in places})
    head = ["method", "setting", "data set", *(f"{count}-shot" for count in shots)]
    lines = [[Text(title) for title in head]]
    for (method, variant, dataset), places in entries.items():
        name = PAPER_NAMES.get(dataset, dataset)
        scores = [places[n].text(counted) if n in places else Text("") for n in shots]
        lines.append([Text(method), Text(variant), Text(name), *scores])
    return lines if special else [[line[0], *line[2:]] for line in lines]


def _sizes(lines: list[list["Text"]], names: int, width: int) -> list[int]:
    """The widths of the columns; long names give way to the numbers, the longest first."""
    sizes = [max(text.cell_len for text in column) for column in zip(*lines, strict=True)]
    while sum(sizes) + len(sizes) - 1 > width and max(sizes[:names]) > _SHORTEST_NAME:
        sizes[sizes.index(max(sizes[:names]))] -= 1
    return sizes


def _bar(times: TimeLeft, width: int) -> "RenderableType":
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    line = f"{times.done}/{times.total} cells in {clock(times.elapsed())}, {left(times)}"
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=max(4, min(24, width - len(line) - 1)))
    grid.add_row(ProgressBar(total=times.total, completed=times.done), Text(line, no_wrap=True))
    return grid


def left(times: TimeLeft) -> str:
    """The time left in words."""
    if times.done == times.total:
        return "all done"
    seconds = times.seconds()
    return "time left not known yet" if seconds is None else f"about {clock(seconds)} left"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


def percent(score: float | None) -> str:
    """A score as in the tables."""
    return "–" if score is None else f"{100 * score:.1f}"
