"""What figures say of their numbers: as the footnotes of tables do."""

from collections.abc import Iterable

from recap.benchmark.figures.runs import Run
from recap.benchmark.figures.style import method_name
from recap.benchmark.run_notes import Shown, own_notes


def figure_notes(runs: Iterable[Run], variants: bool = False) -> tuple[str, ...]:
    """The notes of a figure that shows these runs, or the variants of a study."""
    return tuple(note.text for note in own_notes(map(shown_run, runs), variants))


def shown_run(run: Run) -> Shown:
    """A run under the names that figures and the report use."""
    name = method_name(run.method)
    about = (run.fitted_on, run.without_mask, run.counts)
    return Shown(name, run.dataset, run.seed, run.cell, *about)
