"""Qualitative grids: the kept test images, their ground truth, and each method's map."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recap.bench.examples import Example, read_examples, read_maps
from recap.bench.figures.runs import Run, figure_notes
from recap.bench.figures.style import (
    WIDTH_IN,
    Figure,
    dataset_name,
    heat_colours,
    method_name,
    new_figure,
    setting_name,
)
from recap.errors import require
from recap.types import CLASSES, BoolArray, FloatArray

SCALE_SHARE = 99.5
LONGEST_NAME = 20
CAPTION = (
    "Test images that were chosen by their position before anything was scored; maps of seed "
    "{seeds}. Each method's maps share one fixed scale, which the head of its column gives: from 0 "
    f"to the {SCALE_SHARE:g}th percentile of all its maps shown here, the normal image's included; "
    "never an image's own minimum and maximum. The ground truth is outlined on the maps. “no mask” "
    "means that the data set does not say where the anomaly is."
)
_EXTENT = (0.0, 1.0, 1.0, 0.0)  # pictures and maps may differ in size


@dataclass(frozen=True)
class _Column:
    """A method's maps of one data set and number of shots, with the end of their scale."""

    method: str
    maps: Mapping[str, FloatArray]
    top: float


def map_figures(out: Path, runs: Sequence[Run]) -> list[Figure]:
    """One grid per data set and number of shots that has kept maps."""
    figures = []
    for dataset in sorted({run.dataset for run in runs}, key=dataset_name):
        examples = read_examples(out, dataset)
        for shots in sorted({run.shots for run in runs if run.dataset == dataset}):
            own = [run for run in runs if (run.dataset, run.shots) == (dataset, shots)]
            firsts = _first_seeds(own)
            columns = _columns(firsts, examples)
            if columns:
                figures.append(_figure(dataset, shots, columns, examples, firsts))
    return figures


def _figure(
    dataset: str,
    shots: int,
    columns: list[_Column],
    examples: Mapping[str, Example],
    runs: Sequence[Run],
) -> Figure:
    seeds = " and ".join(map(str, sorted({run.seed for run in runs})))
    title = f"{dataset_name(dataset)}, {setting_name(shots)}, seed {seeds}: anomaly maps"
    return Figure(
        f"maps-{dataset}-{shots}-shot",
        title,
        CAPTION.format(seeds=seeds),
        lambda: _draw(title, columns, examples),
        figure_notes(runs),
    )


def _first_seeds(runs: Sequence[Run]) -> list[Run]:
    firsts: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        firsts.setdefault(run.method, run)
    return sorted(firsts.values(), key=lambda run: (run.method != "recap", run.method))


def _columns(runs: Sequence[Run], examples: Mapping[str, Example]) -> list[_Column]:
    columns = []
    for run in runs:
        maps = {name: kept for name, kept in read_maps(run.file).items() if name in examples}
        if maps:
            values = np.concatenate([kept.ravel() for kept in maps.values()])
            top = float(np.percentile(values, SCALE_SHARE))
            columns.append(_Column(run.method, maps, max(top, 1e-6)))
    return columns


def _draw(title: str, columns: Sequence[_Column], examples: Mapping[str, Example]) -> Any:
    names = [name for name in examples if any(name in column.maps for column in columns)]
    side = min(1.3, (WIDTH_IN - 0.95) / (2 + len(columns)) - 0.03)
    width = max(3.6, 0.95 + (side + 0.03) * (2 + len(columns)))
    drawn = new_figure(0.68 + (side + 0.03) * len(names), width, layout="compressed")
    drawn.get_layout_engine().set(
        w_pad=0.015, h_pad=0.015, wspace=0, hspace=0, rect=(0, 0, 1, 0.985)
    )
    drawn.suptitle(title, fontsize=8.5)
    grid = drawn.subplots(len(names), 2 + len(columns), squeeze=False)
    for panels, name in zip(grid, names, strict=True):
        _row(panels, name, examples[name], columns)
    heads = ["Input", "Ground\ntruth"]
    heads += [f"{method_name(column.method)}\n0 to {column.top:.2g}" for column in columns]
    for panel, head in zip(grid[0], heads, strict=True):
        panel.set_title(head)
    _colour_bar(drawn, grid)
    return drawn


def _row(panels: Sequence[Any], name: str, example: Example, columns: Sequence[_Column]) -> None:
    for panel in panels:
        panel.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(1, 0), aspect="equal")
        panel.spines[:].set(visible=True, color="#808080", linewidth=0.4)
    kind, _, file = name.partition("/")
    panels[0].imshow(example.picture, extent=_EXTENT)
    short = file if len(file) <= LONGEST_NAME else f"{file[:9]}…{file[-9:]}"
    panels[0].set_ylabel(f"{kind}\n{short}", fontsize=7)
    if example.mask.any():
        white = {"cmap": "gray", "vmin": 0, "vmax": 1, "interpolation": "none"}
        panels[1].imshow(example.mask, extent=_EXTENT, **white)
    else:  # an empty mask alone does not make a normal image
        _say(panels[1], "normal:\nnothing\nto find" if kind == CLASSES[False] else "no mask")
    for panel, column in zip(panels[2:], columns, strict=True):
        kept = column.maps.get(name)
        if kept is None:
            _say(panel, "not kept")
            continue
        panel.imshow(kept, cmap=heat_colours(), vmin=0, vmax=column.top, extent=_EXTENT)
        _outline(panel, example.mask)


def _say(panel: Any, text: str) -> None:
    panel.set_facecolor("#eeeeee")
    panel.text(0.5, 0.5, text, ha="center", va="center", fontsize=7, color="#333333")


def _outline(panel: Any, mask: BoolArray) -> None:
    """White on black, which shows on every colour of the scale and in grey."""
    if not mask.any():
        return
    padded = np.pad(mask.astype(float), 1)  # closes the contour of a mask that meets the border
    rows, columns = ((np.arange(n + 2) - 0.5) / n for n in mask.shape)
    for colour, width in (("black", 1.6), ("white", 0.7)):
        panel.contour(columns, rows, padded, levels=[0.5], colors=colour, linewidths=width)


def _colour_bar(drawn: Any, grid: Any) -> None:
    scale = require("matplotlib.cm", "figures").ScalarMappable(cmap=heat_colours())
    bar = drawn.colorbar(
        scale, ax=grid, shrink=0.6, fraction=0.05, pad=0.02, aspect=25, ticks=[0, 0.5, 1]
    )
    bar.ax.set_yticklabels(["0", "½", "end"])
    bar.set_label("Anomaly map, on the column's scale")
    bar.outline.set_linewidth(0.4)
