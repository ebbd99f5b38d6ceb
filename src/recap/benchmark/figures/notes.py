"""What figures say of their numbers: as the footnotes of tables do."""

from collections.abc import Iterable

from recap.benchmark.figures.runs import Run
from recap.benchmark.figures.style import method_name
from recap.benchmark.run_notes import Shown, own_notes


def figure_notes(runs: Iterable[Run]) -> tuple[str, ...]:
    """The notes of a figure that shows these runs."""
    shown = [Shown(method_name(run.method), run.dataset, run.seed, run.cell) for run in runs]
    return tuple(note.text for note in own_notes(shown))
