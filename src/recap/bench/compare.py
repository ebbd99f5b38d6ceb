"""Variants of a study, or columns of a grid, against one of them: differences and tables."""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from recap._files import write_atomic
from recap.bench.agreement import Averaged, refuse_mixed
from recap.bench.notes import Shown, own_notes
from recap.bench.published import Note
from recap.bench.results import FOLDER, definition, experiment_file, named_results, read_experiment
from recap.bench.studies import reference_of, value_of
from recap.bench.table_model import Cell, Column, Label, Number, Row, Table, rank_down
from recap.errors import InputError
from recap.methods.registry import settings_from_dict
from recap.metrics.bootstrap import Comparison, paired_bootstrap
from recap.metrics.curve import DoubleArray
from recap.types import BoolArray

COMPARISON = "comparison"
"""The name of what is no study, but columns of a grid."""
METRICS = ("image_auroc", "pixel_auroc", "pixel_f1_max")

Labelled = tuple[str, dict[str, Any]]
"""A variant, or a column of a grid, and one of its results."""
Runs = Mapping[int, dict[str, Any]]
"""The results of a variant by seed."""


def write_summary(out: Path, name: str) -> list[dict[str, Any]]:
    """Summarise an experiment and keep that beside its definition."""
    rows = summarise(out, name)
    write_atomic(out / FOLDER / f"{name}-summary.json", json.dumps(rows, indent=1) + "\n")
    return rows


def summarise(out: Path, name: str) -> list[dict[str, Any]]:
    """One row for each data set, number of shots, metric and variant that has results.

    `mean` and `std` are over the seeds, as fractions. `delta` is the difference to the reference,
    averaged over the seeds that both have, and `delta_std` its standard deviation over them. For
    images `delta_low` to `delta_high` is the 95 % interval of a paired bootstrap: the same images
    (or patients, where known) are drawn for all runs, and each resample gives the difference of
    AUROC averaged over the seeds. It tells how far the result depends on the test images, not on
    the seeds. Scores of several seeds are neither averaged, which would measure an ensemble, nor
    pooled, which would compare scores of different scales.
    """
    content = definition(out, name)
    if content is None or "base" not in content:
        raise InputError(
            f"{experiment_file(out, name)}: there is no such study. `recap bench ablate` and "
            "`recap bench sweep` make them."
        )
    reference = reference_of(name, settings_from_dict(content["base"]["settings"]))
    results = sorted(read_experiment(out, name), key=lambda r: value_of(name, r[0]) or 0)
    return _rows(name, reference, results)


def summarise_grid(out: Path, name: str, methods: Sequence[str], reference: str) -> list[Any]:
    """The same of some columns of a grid against another one, wherever both have results."""
    found = named_results(out, name)
    known = list(dict.fromkeys(label for label, _ in found))
    for label in (*methods, reference):
        if label not in known:
            raise InputError(f"{out}: has no '{label}'. It has: {', '.join(known) or 'nothing'}.")
    places = {label: {_place(run) for column, run in found if column == label} for label in known}
    shared = places[reference] & set().union(*(places[label] for label in methods))
    if not shared:
        raise InputError(
            f"{out}: '{reference}' has no results on a data set and shots on which "
            f"{' or '.join(methods)} has some. Run those cells first, or compare with another."
        )
    columns = (*methods, reference)
    chosen = [(label, run) for label, run in found if label in columns and _place(run) in shared]
    return _rows(COMPARISON, reference, chosen)


def _place(result: Mapping[str, Any]) -> tuple[str, int]:
    """Data set and shots."""
    return result["cell"]["dataset"], result["cell"]["shots"]


def _rows(name: str, reference: str, results: Sequence[Labelled]) -> list[dict[str, Any]]:
    rows = []
    for (dataset, shots), variants in _by_place(results).items():
        notes = _notes(dataset, variants, of_study=name != COMPARISON)
        for metric in METRICS:
            for label, numbers in _numbers(variants, reference, metric):
                value = value_of(name, label)
                place = {"dataset": dataset, "shots": shots, "metric": metric}
                about = {"experiment": name, "reference": reference, "variant": label}
                rows.append({**about, "value": value, **place, **numbers, "notes": notes})
    return rows


def _notes(dataset: str, variants: Mapping[str, Runs], of_study: bool) -> list[list[str]]:
    """Say what the numbers are of, each note with its key."""
    shown = [
        Shown(
            label,
            dataset,
            seed,
            run["cell"],
            run.get("support_images_in_test", 0),
            run.get("without_mask", 0),
            _counts(run),
        )
        for label, runs in variants.items()
        for seed, run in runs.items()
    ]
    return [list(note) for note in own_notes(shown, variants=of_study)]


def _by_place(results: Sequence[Labelled]) -> dict[tuple[str, int], dict[str, dict[int, Any]]]:
    """Results by data set and shots, then by variant, then by seed; settings may not mix."""
    averaged: list[Averaged] = []
    places: dict[tuple[str, int], dict[str, dict[int, Any]]] = {}
    for label, result in results:
        cell, seed = result["cell"], result["cell"]["settings"]["seed"]
        where = f"{label} on {cell['dataset']}, {cell['shots']} shots"
        averaged.append(Averaged(where, seed, cell, _counts(result), result.get("support")))
        places.setdefault(_place(result), {}).setdefault(label, {})[seed] = result
    refuse_mixed(averaged)
    return dict(sorted(places.items()))


def _counts(result: Mapping[str, Any]) -> tuple[int, int]:
    """Abnormal and normal images."""
    labels = [row["abnormal"] for row in result["images"]]
    return sum(labels), len(labels) - sum(labels)


def _numbers(
    variants: Mapping[str, Runs], reference: str, metric: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    for label, runs in variants.items():
        measured = _measured(runs, metric)
        if measured:
            others = {} if label == reference else _measured(variants.get(reference, {}), metric)
            values = [run["metrics"][metric] for run in measured.values()]
            spread = {"mean": fmean(values), "std": _std(values), "seeds": len(values)}
            yield label, {**spread, **_difference(measured, others, metric)}


def _measured(runs: Runs, metric: str) -> Runs:
    """The runs that have a metric; without masks there is none of pixels."""
    values = {seed: run["metrics"].get(metric) for seed, run in runs.items()}
    return {s: runs[s] for s, value in values.items() if value is not None and math.isfinite(value)}


def _std(values: Collection[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def _difference(runs: Runs, others: Runs, metric: str) -> dict[str, float | None]:
    keys = ("delta", "delta_std", "delta_low", "delta_high", "p_value")
    seeds = sorted(runs.keys() & others.keys())
    if not seeds:
        return dict.fromkeys(keys)
    pairs = [(runs[seed], others[seed]) for seed in seeds]
    deltas = [mine["metrics"][metric] - theirs["metrics"][metric] for mine, theirs in pairs]
    found = compare(pairs) if metric == "image_auroc" else None
    interval = (found.low, found.high, found.p_value) if found else (None,) * 3
    return dict(zip(keys, (fmean(deltas), _std(deltas), *interval), strict=True))


def compare(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> Comparison | None:
    """Image AUROC of some runs against others on the same images, averaged over the pairs.

    None where nothing can be resampled, as where one patient has all normal images, or where
    every draw leaves other images of a pool to be measured on.
    """
    images = _images(pairs[0][0])
    for mine, theirs in pairs:
        if _images(mine) != _images(theirs):
            cell = mine["cell"]
            raise InputError(
                f"Two results on {cell['dataset']}, {cell['shots']} shots, seed "
                f"{cell['settings']['seed']} are on different images. Run them again."
            )
    if any(_images(mine) != images for mine, _ in pairs):
        return None
    positive = np.array([abnormal for _, abnormal, _ in images])
    wins = [_wins(side, positive) for side in zip(*pairs, strict=True)]
    n = len(images)

    def mean_auroc(places: Any, _: BoolArray) -> float:
        side, drawn = divmod(places.astype(np.int64), n)
        repeats = np.bincount(drawn, minlength=n).astype(np.float64)
        up, down = repeats[positive], repeats[~positive]
        return float(up @ wins[side[0]] @ down / (up.sum() * down.sum()))

    # What is resampled are the numbers of the images; those of the second side begin at n.
    numbers, patients = np.arange(n), [patient for *_, patient in images]
    try:
        return paired_bootstrap(mean_auroc, numbers, n + numbers, positive, patients)
    except InputError:
        return None


def _images(run: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Name the images that a run was measured on."""
    return [(row["file"], row["abnormal"], row["patient"]) for row in run["images"]]


def _wins(runs: Sequence[dict[str, Any]], positive: BoolArray) -> DoubleArray:
    """The share of runs in which each abnormal image scores above each normal one; ties are half.

    Its mean is the AUROC averaged over the runs, and so it is on every resample.
    """
    total = np.zeros((np.count_nonzero(positive), np.count_nonzero(~positive)))
    for run in runs:
        scores = np.array([row["score"] for row in run["images"]])
        up, down = scores[positive, None], scores[~positive]
        total += (up > down) + 0.5 * (up == down)
    return total / len(runs)


TITLES = {
    "components": "Components",
    "conditioning": "Prototype conditioning",
    "backbones": "Encoders",
    "comparison": "Comparison",
    "recipe": "The recipe, each part taken back",
    "sweep-eta": "Strength of the conditioning η",
    "sweep-topk": "Top-k ratio",
    "sweep-lambda": "Weight of the memory λ",
    "sweep-delta-sep": "Separation margin δ and weight λ_sep",
}
METRIC_NAMES = {
    "image_auroc": "image AUROC",
    "pixel_auroc": "pixel AUROC",
    "pixel_f1_max": "pixel F1-max",
}
OVER_IMAGES = Note(
    "over-images",
    "Paired bootstrap over the images, or over patients where they are known: the difference of "
    "AUROC averaged over the seeds, on each of 1000 resamples. The interval says what other images "
    "would change, not what other seeds or supports would.",
)
OVER_SEEDS = Note(
    "over-seeds",
    "Mean ± standard deviation of the differences seed by seed. Maps are not kept, so there is "
    "no interval over the images.",
)


def study_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """One table for each data set, number of shots and metric, in per cent."""
    keys = ("experiment", "dataset", "shots", "metric")
    groups = groupby(rows, key=lambda row: tuple(row[key] for key in keys))
    return [_table(list(members)) for _, members in groups]


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    first = rows[0]
    of_images = first["metric"] == "image_auroc"
    note = OVER_IMAGES if of_images else OVER_SEEDS
    columns = [
        Column(Label(METRIC_NAMES[first["metric"]].split()[-1])),
        Column(Label(f"Difference to {first['reference']}", (note,)), better=""),
    ]
    if of_images:
        interval = Label("95 % interval")
        columns += [Column(Label(end), interval, better="") for end in ("from", "to")]
    lines = []
    for row in rows:
        numbers: list[Number | None] = [
            Number(100 * row["mean"], _percent(row["std"]), row["seeds"])
        ]
        if of_images:
            numbers += [_number(row[key]) for key in ("delta", "delta_low", "delta_high")]
        else:
            numbers.append(_number(row["delta"], row["delta_std"]))
        lines.append(Row((Label(row["variant"]),), tuple(Cell(ours=own) for own in numbers)))
    key = "-".join(str(first[part]) for part in ("experiment", "dataset", "shots", "metric"))
    shots = f"{first['shots']}-shot" if first["shots"] else "zero-shot"
    title = f"{TITLES.get(first['experiment'], first['experiment'])}: {first['dataset']}, {shots}"
    notes = tuple(Note(*note) for note in first.get("notes", ()))  # older summaries have none
    head = Label(f"{title}, {METRIC_NAMES[first['metric']]} (%)", notes)
    return Table(key, head, ("Variant",), tuple(columns), tuple(rank_down(lines, columns)))


def _number(value: float | None, spread: float | None = None) -> Number | None:
    return None if value is None else Number(100 * value, _percent(spread))


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
