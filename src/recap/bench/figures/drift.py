"""Figures of how far prototypes move: of one method over images, and of the variants of a study."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from recap.bench.figures.runs import Run, figure_notes
from recap.bench.figures.style import (
    CLASS_COLOURS,
    CLASS_HATCHES,
    CLASS_LINES,
    CLASS_MARKERS,
    Figure,
    class_patch,
    dataset_name,
    figure_name,
    legend_below,
    method_name,
    new_figure,
    seeds_name,
    setting_name,
    with_minus,
)
from recap.errors import require
from recap.types import CLASSES, FloatArray

BRANCHES = ("segmentation", "detection")
SHORT = ("seg.", "det.")
FLOOR = 1e-5  # below it nothing moved; a log axis needs an end
Y_LABEL = "Drift ‖q̃ − q‖\non the unit sphere"
CAPTION = (
    "How far each prototype moved on the unit sphere for the test images, all seeds together, on a "
    "log axis. Left: boxes from the first to the third quartile with the median, whiskers from the "
    "5th to the 95th percentile, of each image's mean over layers; below them, how much further "
    "the median abnormal image moves the prototype than the median normal one. Middle and right: "
    "means per layer. The bound is the largest drift that any image can cause; 2 is the sphere's "
    "diameter (per layer: black for the normal prototype, grey for the abnormal one). Boxes of "
    "normal and abnormal images at one height mean that an anomaly does not pull the prototypes "
    "further than a normal image does."
)


def drift_figures(runs: Sequence[Run]) -> list[Figure]:
    """One figure per method and data set: a row per number of shots."""
    moving = list(filter(moves, runs))
    figures = []
    for method, dataset in dict.fromkeys((run.method, run.dataset) for run in moving):
        own = [run for run in moving if (run.method, run.dataset) == (method, dataset)]
        title = f"{dataset_name(dataset)}: drift of the prototypes of {method_name(method)}"
        name = figure_name("drift", method, dataset)
        draw = partial(_draw, own, title)
        figures.append(Figure(name, title, CAPTION, draw, figure_notes(own)))
    return figures


def moves(run: Run) -> bool:
    """Tell whether a method moved its prototypes for any image."""
    return run.drift is not None and float(run.drift.max()) > FLOOR


def _draw(runs: Sequence[Run], title: str) -> Any:
    shots = sorted({run.shots for run in runs})
    drawn = new_figure(0.8 + 1.85 * len(shots))
    drawn.suptitle(title)
    grid = drawn.subplots(len(shots), 3, squeeze=False, sharey=True, width_ratios=(1.5, 1, 1))
    for panels, count in zip(grid, shots, strict=True):
        own = [run for run in runs if run.shots == count]
        seeds = f"{setting_name(count)}, {seeds_name([run.seed for run in own])}"
        _images_panel(panels[0], own)
        panels[0].set_title(f"{seeds}: each test image")
        panels[0].set_ylabel(Y_LABEL)
        for branch, panel in enumerate(panels[1:]):
            _layers_panel(panel, own, branch)
            panel.set_title(f"{setting_name(count)}: {BRANCHES[branch]} branch")
    for panel in grid[-1, 1:]:
        panel.set_xlabel("Tapped layer")
    legend_below(drawn, _all_handles())
    return drawn


def _images_panel(panel: Any, runs: Sequence[Run]) -> None:
    places = [(b, p) for b in range(2) for p in range(2)]
    for x, (branch, prototype) in enumerate(places):
        boxes_of(panel, x, runs, branch, prototype)
    names = [f"{SHORT[b]} branch\n{CLASSES[p]}\nprototype" for b, p in places]
    panel.set_xticks(range(len(places)), names)
    log_axis(panel)


def boxes_of(
    panel: Any, x: float, runs: Sequence[Run], branch: int, prototype: int, width: float = 0.3
) -> None:
    """The boxes of normal and abnormal images at a place of the axis, with the bound above."""
    both: list[FloatArray] = []
    for label in (False, True):
        of_label = ((r.drift, r.abnormal == label) for r in runs)
        moved = [drift[own, branch, prototype] for drift, own in of_label if drift is not None]
        both.append(np.concatenate(moved).clip(min=FLOOR))
    for label, values in zip((False, True), both, strict=True):
        if len(values):
            _box(panel, x + (label - 0.5) * width * 1.2, values, label, width)
    if all(len(values) for values in both):
        normal, abnormal = (float(np.median(values)) for values in both)
        low = min(float(np.percentile(values, 5)) for values in both)
        more = 100 * (abnormal / normal - 1)
        text = with_minus(f"{more:+.1f} %" if abs(more) < 10 else f"{more:+.0f} %")
        place: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "top"}
        panel.annotate(text, (x, low), (0, -3), **place)
    bounds = [run.layer_drift["bound"] for run in runs if run.layer_drift is not None]
    # The mean over layers of what bounds each layer bounds the mean over layers.
    bound = float(np.mean([value[branch, :, prototype].mean() for value in bounds]))
    panel.plot([x - 1.25 * width, x + 1.25 * width], [bound, bound], color="black", ls=":", lw=1.2)


def _box(panel: Any, x: float, values: FloatArray, label: bool, width: float) -> None:
    """Drawn by hand: matplotlib's own boxes ask for the backend, and so may open a display."""
    colour = CLASS_COLOURS[label]
    low, first, median, third, high = np.percentile(values, (5, 25, 50, 75, 95))
    panel.bar(
        x,
        third - first,
        width,
        bottom=first,
        facecolor=class_patch(label).get_facecolor(),
        edgecolor=colour,
        hatch=CLASS_HATCHES[label],
        linewidth=0.8,
    )
    panel.vlines([x, x], [low, third], [first, high], color=colour, linewidth=0.8)
    panel.hlines([low, high], x - width / 4, x + width / 4, color=colour, linewidth=0.8)
    panel.hlines(median, x - width / 2, x + width / 2, color="black", linewidth=1.0)


def _layers_panel(panel: Any, runs: Sequence[Run], branch: int) -> None:
    """Per layer: colour and line tell the prototype, the marker tells the images."""
    kept = [run.layer_drift for run in runs if run.layer_drift is not None]
    depth = kept[0]["bound"].shape[1]
    layers = np.arange(1, depth + 1)
    for prototype in range(2):
        shade = ("#000000", "#7f7f7f")[prototype]
        bound = np.mean([drift["bound"][branch, :, prototype] for drift in kept], axis=0)
        panel.plot(layers, bound, color=shade, ls=":", lw=1.2)
        for label in (False, True):
            means = np.mean([drift[CLASSES[label]][branch, :, prototype] for drift in kept], axis=0)
            panel.plot(
                layers + (label - 0.5) * 0.14 + (prototype - 0.5) * 0.04,
                means.clip(min=FLOOR),
                color=CLASS_COLOURS[label],
                ls=CLASS_LINES[prototype],
                lw=0.9,
                marker=CLASS_MARKERS[label],
                markerfacecolor="white" if prototype else CLASS_COLOURS[label],
            )
    panel.set_xticks(layers)
    panel.set_xlim(0.6, depth + 0.4)
    log_axis(panel)


def log_axis(panel: Any) -> None:
    """A log axis with plain numbers, of which there are enough over less than a decade too."""
    ticker = require("matplotlib.ticker", "figures")
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_locator(ticker.NullLocator())
    panel.margins(y=0.18)
    panel.grid(True, axis="y")


def box_handles() -> dict[str, Any]:
    """Legend entries for the boxes of both classes, and for the bound."""
    line = require("matplotlib.lines", "figures").Line2D
    images = {f"{CLASSES[i]} images": class_patch(i) for i in (False, True)}
    return {**images, "bound": line([], [], color="black", ls=":")}


def _all_handles() -> dict[str, Any]:
    """Also the lines per layer, whose markers tell the images."""
    line = require("matplotlib.lines", "figures").Line2D
    handles = box_handles()
    for i in range(2):
        mark = line([], [], color=CLASS_COLOURS[i], marker=CLASS_MARKERS[i], ls="")
        handles[f"{CLASSES[i]} images"] = (handles[f"{CLASSES[i]} images"], mark)
    for i, fill in enumerate(("#333333", "white")):
        look = {"color": "#333333", "ls": CLASS_LINES[i], "marker": "o", "markerfacecolor": fill}
        handles[f"{CLASSES[i]} prototype"] = line([], [], lw=0.9, **look)
    return handles


VARIANTS_CAPTION = (
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
        named = [replace(run, method=label) for label, runs in own.items() for run in runs]
        notes = figure_notes(named, variants=True)
        figures.append(
            Figure(name, title, VARIANTS_CAPTION, partial(_draw_variants, own, title), notes)
        )
    return figures


def _draw_variants(variants: Mapping[str, Sequence[Run]], title: str) -> Any:
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
