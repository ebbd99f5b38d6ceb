"""Output for a terminal: progress on stderr, and text whose names cannot command it.

Where there is no terminal, progress is a plain line per stage.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from recap.errors import some
from recap.progress import Progress

STAGES = {
    "encode": "Encoding images",
    "train": "Training",
    "train_maps": "Training maps",
    "remember": "Remembering",
    "score": "Scoring",
    "images": "Slices, tiles",
    "previews": "Explaining",
    "check": "Checking",
    "draw": "Drawing",
    "figures": "Figures",
    "time": "Timing",
    "download": "Downloading",
    "unpack": "Unpacking",
    "export": "Exporting",
    "weights": "Weights",
}


@contextmanager
def bars() -> Iterator[Progress]:
    """Draw one bar per stage, with the time left and the last detail (loss terms, file name)."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain()
        return
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        # File names are text, not markup.
        TextColumn("{task.fields[detail]}", style="dim", markup=False),
    )
    with Bars(*columns, console=console) as progress:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int, detail: str) -> None:
            if not done and not total:
                console.print(f"{STAGES.get(stage, stage)}: {printable(detail)}", markup=False)
                return
            if stage not in tasks:
                tasks[stage] = progress.add_task(STAGES.get(stage, stage), total=None, detail="")
            known = total or None
            progress.update(tasks[stage], completed=done, total=known, detail=printable(detail))

        yield show


def _plain() -> Progress:
    """Print for logs: a line at the start, at every tenth of the way, and at the end of a stage."""
    shown: dict[str, int] = {}

    def show(stage: str, done: int, total: int, detail: str) -> None:
        if not done and not total:
            print(f"{STAGES.get(stage, stage)}: {printable(detail)}", file=sys.stderr, flush=True)
            return
        tenth = 10 * done // total if total else done.bit_length()
        if shown.get(stage) != tenth:
            shown[stage] = tenth
            number = f"{done}/{total}" if total else f"{done}"
            line = f"{STAGES.get(stage, stage)}: {number} {printable(detail)}".rstrip()
            print(line, file=sys.stderr, flush=True)

    return show


def printable(text: str, keep: str = "") -> str:
    """Text for a terminal or a log: what a file name could command there is shown instead.

    An escape sequence may clear the screen, a line break forge a line of a log.
    """
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def unmatched_exclusions(listed_in: str, entries: Sequence[str], domain: str) -> str:
    """Say that entries of an exclusion list leave nothing out."""
    return (
        f"{listed_in}: entries that match no image here: {some(entries)}. An entry starts with the "
        f"data set's folder, as {domain}_AD/test/… does."
    )
