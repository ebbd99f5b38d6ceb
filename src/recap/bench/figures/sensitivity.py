"""Sensitivity curves and ablations, from the summaries of `recap bench sweep` and `ablate`."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recap.bench.figures.style import (
    COLOURS,
    LINES,
    MARKERS,
    WIDTH_IN,
    Figure,
    dataset_name,
    legend_below,
    method_name,
    new_figure,
    setting_name,
    with_minus,
)
from recap.bench.kept import refusing_damage
from recap.bench.results import FOLDER
from recap.bench.table_cells import ALIASES
from recap.errors import counted, require

CURVES = {
    "eta": ("the bound η", "η, largest step of an entry"),
    "topk": ("the top-k ratio", "Share of the patches in the image score"),
    "lambda": ("the memory weight λ", "λ, share of the memory in the score"),
    "delta-sep": ("the separation loss", "δ, margin of the separation loss"),
}
TITLES = {
    "components": "Without one component",
    "conditioning": "Conditioning of the prototypes",
    "backbones": "Encoders",
}
METRICS = {"image_auroc": "Image AUROC (%)", "pixel_auroc": "Pixel AUROC (%)"}
SUFFIX = "-summary.json"
CURVE_CAPTION = (
    "AUROC over the values of one setting, all others unchanged; mean and standard deviation over "
    "seeds. The dotted line marks the value that the other experiments use."
)
DOTS_CAPTION = (
    "What each variant gains or loses in AUROC beside the reference (black), in percentage points. "
    "Image level: the bar is the 95 % interval of a paired bootstrap over the images, and the dot "
    "is filled where it leaves out 0. Pixel level: ± the standard deviation over seeds (grey "
    "square), as maps are not kept. On the right each variant's own AUROC, mean ± standard "
    "deviation over seeds, in percent."
)
_PAIR = re.compile(r"δ = (\S+), (λ_sep = \S+)")


@dataclass(frozen=True)
class Entry:
    """A variant's AUROC on one data set, and its difference from the reference; in percent."""

    variant: str
    value: float | None
    line: str
    """Which curve a value belongs to, where a sweep has several on one data set."""
    dataset: str
    shots: int
    metric: str
    mean: float
    std: float | None
    """Over the seeds; one seed has none."""
    seeds: int
    reference: bool
    delta: float | None
    interval: tuple[float, float] | None
    """95 % of the resamples, or else ± the standard deviation over seeds."""
    resampled: bool
    notes: tuple[str, ...] = ()


def study_figures(out: Path) -> list[Figure]:
    """Curves of all sweeps and dots of all ablations that have a summary."""
    figures = []
    for file in sorted((out / FOLDER).glob(f"*{SUFFIX}")):
        name = file.name.removesuffix(SUFFIX)
        entries = read_summary(file)
        for shots in sorted({entry.shots for entry in entries}):
            own = [entry for entry in entries if entry.shots == shots]
            figures.append(_figure(name, own))
    return figures


def _figure(name: str, entries: Sequence[Entry]) -> Figure:
    place = f"{name}-{entries[0].shots}-shot"
    datasets = ", ".join(sorted({dataset_name(e.dataset) for e in entries}))
    most, least = max(e.seeds for e in entries), min(e.seeds for e in entries)
    seeds = counted(most, "seed") if most == least else f"{least} to {most} seeds"
    about = f"{datasets}, {setting_name(entries[0].shots)}, {seeds}"
    notes = tuple(dict.fromkeys(note for entry in entries for note in entry.notes))
    if all(entry.value is not None for entry in entries):
        subject, axis = CURVES.get(name.removeprefix("sweep-"), (name, name))
        title = f"Sensitivity to {subject}: {about}"
        return Figure(
            place, title, CURVE_CAPTION, lambda: _draw_curves(entries, title, axis), notes
        )
    title = f"{TITLES.get(name, name)}: {about}"
    return Figure(place, title, DOTS_CAPTION, lambda: _draw_dots(entries, title), notes)


def read_summary(file: Path) -> list[Entry]:
    """The rows of a summary."""
    with refusing_damage(file):
        rows = json.loads(file.read_text(encoding="utf-8"))
        return [_entry(row) for row in rows if row["metric"] in METRICS]


def _entry(row: dict[str, Any]) -> Entry:
    variant, value, line = str(row["variant"]), row["value"], ""
    pair = _PAIR.fullmatch(variant)
    if pair:
        value, line = pair.groups()
    delta, low, high = (row.get(key) for key in ("delta", "delta_low", "delta_high"))
    spread = row.get("delta_std")
    resampled = delta is not None and None not in (low, high)
    if not resampled and delta is not None and spread is not None:
        low, high = delta - spread, delta + spread
    return Entry(
        variant=variant,
        value=None if value is None else float(value),
        line=line,
        dataset=str(row["dataset"]),
        shots=int(row["shots"]),
        metric=str(row["metric"]),
        mean=100 * row["mean"],
        std=None if row["std"] is None else 100 * row["std"],
        seeds=int(row["seeds"]),
        reference=variant == row.get("reference"),
        delta=None if delta is None else 100 * delta,
        interval=None if low is None or high is None else (100 * low, 100 * high),
        resampled=resampled,
        notes=tuple(str(text) for _, text in row.get("notes", ())),  # older summaries have none
    )


def _draw_curves(entries: Sequence[Entry], title: str, axis: str) -> Any:
    metrics = [metric for metric in METRICS if any(e.metric == metric for e in entries)]
    lines = sorted({(e.dataset, e.line) for e in entries}, key=lambda x: (dataset_name(x[0]), x[1]))
    drawn = new_figure(2.8, WIDTH_IN if len(metrics) > 1 else 4.2)
    drawn.suptitle(title)
    panels = drawn.subplots(1, len(metrics), squeeze=False)[0]
    handles: dict[str, Any] = {}
    for panel, metric in zip(panels, metrics, strict=True):
        for value in {e.value for e in entries if e.reference}:
            panel.axvline(value, color="#808080", ls=":", lw=0.9)
        for style, line in enumerate(lines):
            own = [e for e in entries if e.metric == metric and (e.dataset, e.line) == line]
            if own:
                name = ", ".join(filter(None, (dataset_name(line[0]), line[1])))
                name = name.replace("λ_sep", r"$\lambda_{sep}$")
                handles.setdefault(name, _curve(panel, own, style))
        panel.set(xlabel=axis, ylabel=METRICS[metric])
        _value_axis(panel, sorted({e.value for e in entries if e.value is not None}))
        panel.grid(True, axis="y")
    legend_below(drawn, handles, min(4, len(handles)))
    return drawn


def _value_axis(panel: Any, values: Sequence[float]) -> None:
    """Each value has its tick; values that grow by factors get a log axis."""
    if values[0] > 0 and values[-1] >= 10 * values[0]:
        panel.set_xscale("log")
        panel.minorticks_off()
    panel.set_xticks(values, [with_minus(f"{value:g}") for value in values])


def _curve(panel: Any, entries: Sequence[Entry], style: int) -> Any:
    rising = sorted(entries, key=lambda entry: entry.value or 0.0)
    return panel.errorbar(
        [entry.value for entry in rising],
        [entry.mean for entry in rising],
        # What is NaN is not drawn.
        yerr=[math.nan if entry.std is None else entry.std for entry in rising],
        color=COLOURS[style % len(COLOURS)],
        marker=MARKERS[style % len(MARKERS)],
        linestyle=LINES[style % len(LINES)],
        capsize=2.5,
        elinewidth=0.8,
    )


def _draw_dots(entries: Sequence[Entry], title: str) -> Any:
    metrics = [metric for metric in METRICS if any(e.metric == metric for e in entries)]
    datasets = sorted({entry.dataset for entry in entries}, key=dataset_name)
    variants = list(dict.fromkeys(entry.variant for entry in entries))
    places = [
        (metric, dataset)
        for metric in metrics
        for dataset in datasets
        if any((e.metric, e.dataset) == (metric, dataset) for e in entries)
    ]
    columns = min(2, len(places))
    rows = -(-len(places) // columns)
    drawn = new_figure(
        0.55 + rows * (0.62 + 0.2 * len(variants)), WIDTH_IN * (0.3 + 0.35 * columns)
    )
    drawn.suptitle(title)
    panels = drawn.subplots(rows, columns, squeeze=False).ravel()
    for place, (panel, (metric, dataset)) in enumerate(zip(panels, places, strict=False)):
        own = {e.variant: e for e in entries if (e.metric, e.dataset) == (metric, dataset)}
        _dots_panel(panel, own, variants, names=place % columns == 0)
        panel.set_title(f"{dataset_name(dataset)}, {METRICS[metric].removesuffix(' (%)')}")
        if place + columns >= len(places):
            panel.set_xlabel("Difference from the reference (percentage points)")
    for panel in panels[len(places) :]:
        panel.set_axis_off()
    return drawn


def _dots_panel(
    panel: Any, entries: dict[str, Entry], variants: Sequence[str], names: bool
) -> None:
    panel.axvline(0, color="#666666", lw=0.8)
    blended = require("matplotlib.transforms", "figures").blended_transform_factory
    beside = blended(panel.transAxes, panel.transData)
    for y, variant in enumerate(variants):
        entry = entries.get(variant)
        auroc = "–" if entry is None else f"{entry.mean:.1f}"
        if entry is not None and entry.std is not None:
            auroc += f" ± {entry.std:.1f}"
        panel.text(1.02, y, auroc, transform=beside, va="center", fontsize=7)
        if entry is not None:
            _dot(panel, y, entry)
    panel.text(1.02, -0.72, "AUROC (%)", transform=beside, fontsize=7, color="#595959")
    panel.set_yticks(
        range(len(variants)), [ALIASES.get(v, method_name(v)) for v in variants] if names else []
    )
    panel.set_ylim(len(variants) - 0.5, -0.5)
    panel.spines["left"].set_visible(False)
    panel.tick_params(axis="y", length=0)
    panel.grid(True, axis="both")


def _dot(panel: Any, y: int, entry: Entry) -> None:
    if entry.reference:
        panel.plot([0], [y], color="black", marker="D", ls="")
    if entry.delta is None or entry.reference:
        return
    low, high = entry.interval or (math.nan, math.nan)  # not drawn
    colour, marker = (COLOURS[0], "o") if entry.resampled else ("#595959", "s")
    sure = entry.resampled and (low > 0 or high < 0)
    panel.errorbar(
        [entry.delta],
        [y],
        # A percentile interval need not hold the estimate itself.
        xerr=np.maximum([[entry.delta - low], [high - entry.delta]], 0),
        color=colour,
        marker=marker,
        markerfacecolor=colour if sure else "white",
        capsize=2.5,
        elinewidth=0.9,
    )
