"""Drift by kind of conditioning: what gate and bound change, side by side on one axis."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from recap.benchmark.figures.drift import (
    BRANCHES,
    Y_LABEL,
    box_handles,
    boxes_of,
    log_axis,
    moves,
)
from recap.benchmark.figures.notes import figure_notes
from recap.benchmark.figures.runs import Run
from recap.benchmark.figures.style import (
    Figure,
    dataset_name,
    legend_below,
    new_figure,
    seeds_name,
    setting_name,
)
from recap.types import CLASSES

CAPTION = (
    "How far the prototypes move under each kind of conditioning, all seeds together. Boxes from "
    "the first to the third quartile with the median, whiskers from the 5th to the 95th "
    "percentile, of each image's mean over layers; below them, how much further the median "
    "abnormal image moves the prototype than the median normal one. The bound is the largest drift "
    "that any image can cause; without one it is 2, the sphere's diameter. Static prototypes do "
    "not move and are not shown."
)


def variant_drift_figures(variants: Mapping[str, Sequence[Run]]) -> list[Figure]:
    """One figure per data set and number of shots."""
    moving = {label: list(filter(moves, runs)) for label, runs in variants.items()}
    places = sorted({(run.dataset, run.shots) for runs in moving.values() for run in runs})
    figures = []
    for dataset, shots in places:
        own = {
            label: [run for run in runs if (run.dataset, run.shots) == (dataset, shots)]
            for label, runs in moving.items()
        }
        own = {label: runs for label, runs in own.items() if runs}
        seeds = seeds_name([run.seed for runs in own.values() for run in runs])
        title = f"{dataset_name(dataset)}, {setting_name(shots)}, {seeds}: drift by conditioning"
        name = f"drift-conditioning-{dataset}-{shots}-shot"
        notes = figure_notes(_as_variants(own), variants=True)
        figures.append(Figure(name, title, CAPTION, partial(_draw, own, title), notes))
    return figures


def _as_variants(variants: Mapping[str, Sequence[Run]]) -> list[Run]:
    """All runs, each under the name of its variant."""
    return [replace(run, method=label) for label, runs in variants.items() for run in runs]


def _draw(variants: Mapping[str, Sequence[Run]], title: str) -> Any:
    drawn = new_figure(2.9)
    drawn.suptitle(title)
    panels = drawn.subplots(1, 2, sharey=True)
    for branch, panel in enumerate(panels):
        places, names = [], []
        for index, (label, runs) in enumerate(variants.items()):
            for prototype in range(2):
                x = 2.4 * index + prototype
                boxes_of(panel, x, runs, branch, prototype)
                places.append(x)
                names.append(CLASSES[prototype])
            panel.annotate(
                label,
                (2.4 * index + 0.5, 0),
                (0, -15),
                xycoords=panel.get_xaxis_transform(),
                textcoords="offset points",
                ha="center",
                va="top",
                fontweight="bold",
            )
        panel.set_xticks(places, names)
        panel.set_title(f"{BRANCHES[branch]} branch")
        panel.set_xlabel("Prototype and conditioning", labelpad=14)
        log_axis(panel)
    panels[0].set_ylabel(Y_LABEL)
    legend_below(drawn, box_handles())
    return drawn
