"""Chest from the RSNA Pneumonia Detection Challenge: one radiograph per DICOM file.

Public: "Normal" is normal, "Lung Opacity" and "No Lung Opacity / Not Normal" are abnormal; train
has 8,000 normal images, the pool 1,490, test 17,194; full size; names are Normal-<id>.png,
Lung_Opacity_<id>.png and No-Not-Normal_<id>.png. Inferred from the classes' sizes: 70 normal and
1,420 abnormal images in the pool, 781 and 16,413 in test. Not public, hence ours: which images (by
SHA-256 rank; those of published lists come first where these are given) and that the pool has 710
of each abnormal class. Every image has a patient id of its own in this data, so pool and test
never share one; the NIH collection behind it has several images of some patients, which the files
do not tell.
"""

import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from recap.config import ReadingSettings
from recap.data.prepare.plan import (
    Item,
    Note,
    Output,
    Plan,
    PrepareOptions,
    Source,
    Split,
    draw,
    eight_bit,
    files_below,
    folders_below,
    image_output,
    ranked,
    share_out,
)
from recap.errors import InputError, require

IMAGES, LABELS = "stage_2_train_images", "stage_2_detailed_class_info.csv"
# All files have 8 bits and no window of their own: what is stored is what is shown.
EIGHT_BITS = "0,255"
# Label, start of the published name, and the published numbers.
CLASSES: dict[str, tuple[str, dict[str, int]]] = {
    "Normal": ("Normal-", {"test": 781, "valid": 70, "train": 8000}),
    "Lung Opacity": ("Lung_Opacity_", {"test": 5302, "valid": 710}),
    "No Lung Opacity / Not Normal": ("No-Not-Normal_", {"test": 11111, "valid": 710}),
}
_UNKNOWN_PATIENTS = (
    "Chest: every image counts as a patient of its own; which of them show the same patient of "
    "the NIH collection is not in the files."
)


def plan(raw: Path, options: PrepareOptions) -> Plan:
    """Everything is in the table of labels."""
    require("pydicom", "dicom")
    tables = files_below(raw, LABELS)
    folders = folders_below(raw, IMAGES)
    if not tables or not folders:
        raise SOURCE.wrong_folder(raw, f"no {LABELS if not tables else IMAGES} in it")
    labels = _labels(tables[0])
    present = {path.stem for path in folders[0].glob("[!.]*.dcm")}
    items: list[Item] = []
    for kind in CLASSES:
        ids = ranked((i for i, label in labels.items() if label == kind), "chest limit")
        items += _items(kind, ids[: options.limit], folders[0], options)
    known = {item.key for item in items if item.inputs[0].stem in present}
    return Plan(
        tuple(item for item in items if item.key in known),
        skipped=tuple(Note(i, "has no label") for i in present - labels.keys()),
        errors=tuple(
            Note(item.key, f"{IMAGES}/{item.key}.dcm is missing. Download it again.")
            for item in items
            if item.key not in known
        ),
        caveats=(_UNKNOWN_PATIENTS,),
    )


def make(path: Path, split: Split, abnormal: bool, name: str) -> Iterator[Output]:
    """One radiograph, grey value for grey value."""
    from recap.io.dicom.cases import open_dicom

    case = open_dicom(path, ReadingSettings(window=EIGHT_BITS))
    if len(case.images) != 1:
        raise InputError(f"{path}: holds {len(case.images)} images, not one.")
    yield image_output(split, abnormal, name, eight_bit(case.images[0].pixels))


def _labels(table: Path) -> dict[str, str]:
    with table.open(newline="", encoding="utf-8-sig") as stream:
        rows = csv.DictReader(stream)
        if not {"patientId", "class"} <= {*(rows.fieldnames or ())}:
            raise InputError(f"{table}: needs the columns patientId and class. Download it again.")
        return {row["patientId"]: row["class"] for row in rows}


def _items(kind: str, ids: list[str], folder: Path, options: PrepareOptions) -> list[Item]:
    start, published = CLASSES[kind]
    listed = {*(options.pool_normal if kind == "Normal" else options.pool_abnormal)}
    names = {f"{start}{i}.png": i for i in ids}
    share = share_out(len(names), published)
    pool = {*draw(names, share["valid"], "chest pool", listed)}
    rest = ranked(names.keys() - pool, "chest train")
    train = {*rest[: share.get("train", 0)]}
    items = []
    for name, i in names.items():
        split: Split = "valid" if name in pool else "train" if name in train else "test"
        if split != "train" or options.train:
            path = folder / f"{i}.dcm"
            items.append(Item(i, (path,), partial(make, path, split, kind != "Normal", name)))
    return items


SOURCE = Source(
    name="chest",
    domain="Chest",
    describe=(
        "The RSNA Pneumonia Detection Challenge, stage 2: from its Kaggle page after accepting "
        "the rules (academic and non-commercial use)."
    ),
    expected=(
        "  stage_2_detailed_class_info.csv\n"
        "  stage_2_train_images/0004cfab-14fd-4e49-80ba-63a80b6bddd6.dcm …"
    ),
    plan=plan,
    packages=("pydicom",),
)
