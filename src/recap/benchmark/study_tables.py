"""The tables of an ablation or a sweep, from its summary."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from recap.benchmark.caveats import Note
from recap.benchmark.table_model import Cell, Column, Label, Number, Row, Table, rank_down

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
    lines = [Row((Label(row["variant"]),), _cells(row, of_images)) for row in rows]
    key = "-".join(str(first[part]) for part in ("experiment", "dataset", "shots", "metric"))
    shots = f"{first['shots']}-shot" if first["shots"] else "zero-shot"
    title = f"{TITLES.get(first['experiment'], first['experiment'])}: {first['dataset']}, {shots}"
    notes = tuple(Note(*note) for note in first.get("notes", ()))  # older summaries have none
    head = Label(f"{title}, {METRIC_NAMES[first['metric']]} (%)", notes)
    return Table(key, head, ("Variant",), tuple(columns), tuple(rank_down(lines, columns)))


def _cells(row: Mapping[str, Any], of_images: bool) -> tuple[Cell, ...]:
    mean = Number(100 * row["mean"], _percent(row["std"]), row["seeds"])
    if of_images:
        numbers = [_number(row[key]) for key in ("delta", "delta_low", "delta_high")]
    else:
        numbers = [_number(row["delta"], row["delta_std"])]
    return tuple(Cell(ours=number) for number in [mean, *numbers])


def _number(value: float | None, spread: float | None = None) -> Number | None:
    return None if value is None else Number(100 * value, _percent(spread))


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
