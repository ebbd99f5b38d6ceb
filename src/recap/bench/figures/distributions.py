"""Score distributions: how far normal and abnormal test images stand apart."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recap.bench.figures.runs import Run, auroc_text, figure_notes
from recap.bench.figures.style import (
    CLASS_COLOURS,
    CLASS_HATCHES,
    CLASS_LINES,
    WIDTH_IN,
    Figure,
    class_patch,
    dataset_name,
    figure_name,
    legend_below,
    method_name,
    new_figure,
    seeds_name,
    setting_name,
)
from recap.types import CLASSES, FloatArray

BINS = 30
CAPTION = (
    "Image scores of the test split: the share of the normal and of the abnormal images in each "
    "of {bins} equal steps. Filled: all seeds together; thin lines: each seed. AUROC is the mean "
    "± standard deviation over seeds. The score axis is the same in all panels."
)


def score_figures(runs: Sequence[Run]) -> list[Figure]:
    """One figure per method: a row of panels per data set, a column per number of shots."""
    figures = []
    for method in dict.fromkeys(run.method for run in runs):
        own = [run for run in runs if run.method == method]
        title = f"{method_name(method)}: scores of normal and abnormal test images"
        name, caption = figure_name("scores", method), CAPTION.format(bins=BINS)
        figures.append(Figure(name, title, caption, partial(_draw, own, title), figure_notes(own)))
    return figures


def _draw(runs: Sequence[Run], title: str) -> Any:
    datasets = sorted({run.dataset for run in runs}, key=dataset_name)
    shots = sorted({run.shots for run in runs})
    # One number of shots would make a tall, thin figure: then the data sets stand side by side.
    beside = 2 if len(datasets) in (2, 4) else min(len(datasets), 3)
    columns = len(shots) if len(shots) > 1 else beside
    places = list(product(datasets, shots))
    rows = math.ceil(len(places) / columns)
    width = WIDTH_IN if columns > 1 else 4.2
    drawn = new_figure(0.75 + (1.55 if rows < 6 else 1.38) * rows, width)
    drawn.suptitle(title)
    panels = drawn.subplots(rows, columns, squeeze=False, sharex=True).ravel()
    edges = np.linspace(*_ends(runs), BINS + 1)
    for place, (panel, (dataset, count)) in enumerate(zip(panels, places, strict=False)):
        own = [run for run in runs if (run.dataset, run.shots) == (dataset, count)]
        if own:
            _panel(panel, own, edges)
        else:
            panel.set_axis_off()
        if place % columns == 0:
            panel.set_ylabel("Share of images (%)")
        if place + columns >= len(places):
            panel.set_xlabel("Image score")
            panel.xaxis.set_tick_params(labelbottom=True)
    for panel in panels[len(places) :]:
        panel.set_axis_off()
    legend_below(drawn, {f"{CLASSES[i]} test images": class_patch(i) for i in (False, True)})
    return drawn


def _panel(panel: Any, runs: Sequence[Run], edges: NDArray[np.float64]) -> None:
    first = runs[0]
    for label in (False, True):
        colour, line = CLASS_COLOURS[label], CLASS_LINES[label]
        each = [_shares(run.scores[run.abnormal == label], edges) for run in runs]
        pooled = np.mean(each, axis=0)
        panel.stairs(
            pooled,
            edges,
            fill=True,
            facecolor=colour,
            edgecolor=colour,
            alpha=0.3,
            lw=0,
            hatch=CLASS_HATCHES[label],
        )
        if len(each) > 1:
            for shares in each:
                panel.stairs(shares, edges, color=colour, lw=0.4, alpha=0.6)
        panel.stairs(pooled, edges, color=colour, ls=line, lw=1.1)
    panel.set_xlim(edges[0], edges[-1])
    panel.set_ylim(bottom=0)
    panel.locator_params(axis="x", nbins=5)
    panel.grid(True, axis="y")
    seeds = seeds_name([run.seed for run in runs])
    panel.set_title(
        f"{dataset_name(first.dataset)}, {setting_name(first.shots)}, {seeds}\n{auroc_text(runs)}"
    )


def _shares(scores: FloatArray, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Percent of the scores in each bin; scores beyond the ends count as at the ends."""
    counts, _ = np.histogram(scores.clip(edges[0], edges[-1]), edges)
    return 100 * counts / max(1, len(scores))


def _ends(runs: Sequence[Run]) -> tuple[float, float]:
    """The ends of the score axis, which need not be 0 and 1: some methods' scores stay close."""
    lowest = min(float(run.scores.min()) for run in runs)
    highest = max(float(run.scores.max()) for run in runs)
    if highest <= lowest:
        return lowest - 0.5, lowest + 0.5
    step = 10.0 ** math.floor(math.log10(highest - lowest)) / 2
    low = math.floor(lowest / step + 1e-9) * step
    return (0.0 if 0 < low < highest / 4 else low), math.ceil(highest / step - 1e-9) * step
