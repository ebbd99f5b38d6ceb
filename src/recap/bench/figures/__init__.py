"""The figures of a benchmark: PNG for print, SVG, and the same bytes for the same results."""

from dataclasses import dataclass, field
from pathlib import Path

from recap._files import write_atomic
from recap.bench.figures.distributions import score_figures
from recap.bench.figures.drift import drift_figures, variant_drift_figures
from recap.bench.figures.qualitative import map_figures
from recap.bench.figures.runs import read_runs, read_variants
from recap.bench.figures.sensitivity import study_figures
from recap.bench.figures.style import Figure, render
from recap.progress import Progress, silent

__all__ = ["Figure", "Figures", "make_figures", "render", "write_figures"]


@dataclass(frozen=True)
class Figures:
    """Figures by what they show, in the order of a paper, and why some kinds have none."""

    kinds: dict[str, list[Figure]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def all(self) -> list[Figure]:
        """Every figure."""
        return [figure for figures in self.kinds.values() for figure in figures]


def make_figures(out: Path) -> Figures:
    """Every figure that the results in a folder allow, not yet drawn."""
    runs = read_runs(out)
    kinds = {
        "Score distributions": score_figures(runs),
        "Anomaly maps": map_figures(out, runs),
        "Sensitivity and ablations": study_figures(out),
        "Drift of the prototypes": [
            *drift_figures(runs),
            *variant_drift_figures(read_variants(out, "conditioning")),
        ],
    }
    skipped = {kind: _WHY[kind] for kind, figures in kinds.items() if not figures}
    return Figures({kind: figures for kind, figures in kinds.items() if figures}, skipped)


_WHY = {
    "Score distributions": "no finished cells",
    "Anomaly maps": "no maps were kept beside the results",
    "Sensitivity and ablations": "no summaries; make some with `recap bench sweep` or `ablate`",
    "Drift of the prototypes": "no method here moves its prototypes",
}


def write_figures(figures: Figures, folder: Path, progress: Progress = silent) -> list[Path]:
    """Write each figure as PNG and SVG; gives the files."""
    written = []
    for done, figure in enumerate(figures.all, start=1):
        for form, data in zip(("png", "svg"), render(figure, "png", "svg"), strict=True):
            file = folder / f"{figure.name}.{form}"
            write_atomic(file, data)
            written.append(file)
        progress("figures", done, len(figures.all), figure.name)
    return written
