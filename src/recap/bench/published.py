"""The numbers that the ReCAP paper prints, and what a reader has to know about them.

The numbers ship as CSV files in one long format, one number a line. The sensitivity studies are not
among them: the paper shows those as curves only. Footnotes find their own place.
"""

import csv
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple, cast

from recap.methods.registry import all_methods

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
    """The numbers of images in a test split, and the source that tells them."""

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
    text = files("recap.bench").joinpath("published", name).read_text(encoding="utf-8")
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


Axis = Literal["table", "dataset", "row", "metric"]

_FEW_SHOT: frozenset[TableName] = frozenset(
    {"few_shot", "seeds", "components", "conditioning", "backbones"}
)
_ACCURACY: frozenset[TableName] = frozenset({"zero_shot", "few_shot"})


class Note(NamedTuple):
    """A footnote: its stable key, and what the reader sees."""

    key: str
    text: str


@dataclass(frozen=True)
class Caveat:
    """One footnote: it hangs on the labels in `values` along `axis`, or on the table's title.

    A caveat about supports says nothing about zero-shot columns: `few_shot_only`.
    """

    key: str
    text: str
    tables: frozenset[TableName]
    axis: Axis = "table"
    values: frozenset[str] = frozenset()
    few_shot_only: bool = False


CAVEATS: tuple[Caveat, ...] = (
    Caveat(
        "auroc-is-the-target",
        "42 of the paper's 204 image-level entries (AUROC, F1-max, AP) hold an F1-max or AP that "
        "no ranking of the test split can give: 38 are below the floor of F1-max or above the "
        "ceiling of AP (†), 4 more below the floor of F1-max given the AUROC (‡). Two of the 42 "
        "are ReCAP's own (zero-shot Chest F1-max, 16-shot BrainMRI AP). Take AUROC as the target, "
        "the other two as a rough guide. The class counts of Chest and HIS, on which the bounds "
        "depend, are inferred.",
        _ACCURACY,
    ),
    Caveat(
        "two-pros",
        "PRO is the form used in this family of papers: 200 thresholds, false-positive rates below "
        "0.3 rescaled by their own range, 8-connected regions. AUPRO 0.3 is the exact area up to "
        "that rate. The two differ; the paper does not say which one it prints.",
        _ACCURACY,
        "metric",
        frozenset({"pro", "aupro_0.3"}),
    ),
    Caveat(
        "shared-patients",
        "In the published benchmark, supports and test images of this data set share patients, "
        "which flatters every few-shot result. `recap data audit` says whether they do in your "
        "copy; compare with a run that leaves the shared patients out.",
        _FEW_SHOT,
        "dataset",
        frozenset({"BrainMRI", "LiverCT", "RESC"}),
        few_shot_only=True,
    ),
    Caveat(
        "same-files",
        "In the published support lists, 8 of the 24 abnormal files bear the name of a file in the "
        "test split.",
        _FEW_SHOT,
        "dataset",
        frozenset({"BrainMRI"}),
        few_shot_only=True,
    ),
    Caveat(
        "one-model-two-numbers",
        "'w/o CCM' and 'Static prototypes' are the same model, yet the paper prints different "
        "numbers for them: image AUROC on 4-shot LiverCT is 85.96 in one table and 80.71 in the "
        "other.",
        frozenset({"components", "conditioning"}),
        "row",
        frozenset({"w/o CCM", "Static prototypes"}),
    ),
    Caveat(
        "visualad-input-size",
        "VisualAD adds about 8 % of the encoder's arithmetic, which does not explain 66 ms beside "
        "17 ms at 240 px. Its script takes 518 px from its checkpoint; that may be what was timed.",
        frozenset({"efficiency"}),
        "row",
        frozenset({"VisualAD"}),
    ),
    Caveat(
        "other-machine",
        "Latencies of the paper and ours come from different machines. The ratio to the bare "
        "encoder, timed in the same run, is what carries over.",
        frozenset({"efficiency"}),
    ),
)


def caveats_for(
    table: TableName, axis: Axis, value: str = "", shots: int | None = None
) -> tuple[Note, ...]:
    """The footnotes of a label of a table, in their fixed order.

    `shots` is given where the label stands for one setting, so that zero-shot is spared the
    caveats about supports.
    """
    return tuple(
        Note(caveat.key, caveat.text)
        for caveat in CAVEATS
        if table in caveat.tables
        and caveat.axis == axis
        and (axis == "table" or value in caveat.values)
        and not (caveat.few_shot_only and shots == 0)
    )


def caveats_by_dataset(datasets: Collection[str]) -> tuple[Note, ...]:
    """List what must be said of few-shot results on these data sets, which each footnote names."""
    return tuple(
        Note(caveat.key, about_datasets(caveat, datasets))
        for caveat in CAVEATS
        if caveat.axis == "dataset" and caveat.few_shot_only and caveat.values & set(datasets)
    )


def about_datasets(caveat: Caveat, datasets: Collection[str] | None = None) -> str:
    """A footnote that stands alone: where it would hang on data sets, with their names."""
    if caveat.axis != "dataset":
        return caveat.text
    names = caveat.values if datasets is None else caveat.values & set(datasets)
    return f"{', '.join(sorted(names))}: {caveat.text}"


def extension_note(method: str, shots: Collection[int]) -> tuple[Note, ...]:
    """A footnote where a method is fitted, or draws maps, otherwise than it was published.

    `shots` are those that our numbers under this name are of; a column may name its preset.
    """
    name = method.partition(" (")[0]
    peer = next((peer for peer in all_methods().values() if name in (peer.name, peer.title)), None)
    if peer is None:
        return ()
    used = {"zero-shot": 0 in shots, "few-shot": any(shots)}
    forms = [form for form in used if used[form] and peer.extends(form == "zero-shot")]
    maps = ["maps"] if any(used.values()) and peer.maps == "extension" else []
    if not forms and not maps:
        return ()
    parts = [f"{' and '.join(forms)} form", *maps] if forms else maps
    text = (
        f"{peer.title}: its {' and its '.join(parts)} here {'are' if maps else 'is'} an extension. "
        "Its page in docs/peers says what its publication does."
    )
    return (Note(f"extension-{peer.name}-{'-'.join(forms + maps)}", text),)


def split_note(
    dataset: str, counts: Iterable[tuple[int, int]], split: TestSplit | None
) -> tuple[Note, ...]:
    """A footnote where our (abnormal, normal) test images are not those of the paper."""
    odd = sorted(set(counts) - ({(split.abnormal, split.normal)} if split else set()))
    if not odd or split is None:
        return ()
    ours = " or ".join(f"{abnormal} abnormal and {normal} normal" for abnormal, normal in odd)
    text = (
        f"{dataset}: ours was measured on {ours} test images, the paper's on {split.abnormal} and "
        f"{split.normal} ({split.source}). They describe different data."
    )
    return (Note(f"own-split-{dataset}", text),)
