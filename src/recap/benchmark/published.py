"""The numbers that the ReCAP paper prints, and the test splits they were measured on.

They ship as CSV files in one long format, one number a line. The sensitivity studies are not
among them: the paper shows those as curves only.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, cast

TableName = Literal[
    "zero_shot", "few_shot", "seeds", "components", "conditioning", "backbones", "efficiency"
]
Level = Literal["image", "pixel", ""]

DATASETS = ("HIS", "Chest", "OCT17", "BrainMRI", "LiverCT", "RESC")
PUBLISHED_SEEDS = 5
_FILES = ("accuracy.csv", "seeds.csv", "ablations.csv", "efficiency.csv")


@dataclass(frozen=True)
class PublishedCell:
    """One printed number: per cent, but millions of parameters or milliseconds in `efficiency`.

    `method` is the variant's name in the ablations. `std` is printed for latencies and five seeds.
    """

    table: TableName
    shots: int
    method: str
    backbone: str
    dataset: str
    level: Level
    metric: str
    value: float
    std: float | None = None


@dataclass(frozen=True)
class TestSplit:
    """How many abnormal and normal images a test split holds, and how that is known."""

    __test__ = False  # the name must not make pytest collect it

    dataset: str
    abnormal: int
    normal: int
    source: str


@cache
def load_published() -> tuple[PublishedCell, ...]:
    """All numbers of the paper's tables, in the paper's order."""
    return tuple(_cell(row) for name in _FILES for row in _rows(name))


@cache
def load_splits() -> dict[str, TestSplit]:
    """The benchmark's test splits by the paper's names of the data sets."""
    splits = (
        TestSplit(row["dataset"], int(row["abnormal"]), int(row["normal"]), row["source"])
        for row in _rows("test_splits.csv")
    )
    return {split.dataset: split for split in splits}


def _rows(name: str) -> Iterator[dict[str, str]]:
    text = files("recap.benchmark").joinpath("published", name).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())


def _cell(row: dict[str, str]) -> PublishedCell:
    return PublishedCell(
        table=cast(TableName, row["table"]),
        shots=int(row["shots"]),
        method=row["method"],
        backbone=row["backbone"],
        dataset=row["dataset"],
        level=cast(Level, row["level"]),
        metric=row["metric"],
        value=float(row["value"]),
        std=float(row["std"]) if row["std"] else None,
    )
