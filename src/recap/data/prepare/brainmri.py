"""BrainMRI from BraTS2021: axial FLAIR slices, abnormal where a tumour is annotated.

Public: FLAIR, the counts, the names <patient>_<slice>.png. Inferred from counts and published
names, not stated anywhere: slices 60 to 99 as stored; normal is a slice without annotated tumour;
test shows slices 60, 68, 76, 84 and 92 of 615 patients (3,075 abnormal) and 640 normal slices; the
pool shows slices 60, 70, 80 and 90 of 11 patients, ten of them test patients, and 39 normal slices
numbered 60 or 99; train has 7,500 normal slices. Not public, hence ours: which patients (by
SHA-256 rank; those of published lists come first where these are given), that normal slices come
only from patients who show no abnormal one, and the grey values (0 is black, the 99.5th percentile
of the volume's values above 0 is white).
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from recap.data.prepare.plan import (
    Cut,
    Item,
    Note,
    Output,
    Pair,
    Plan,
    PrepareOptions,
    Probe,
    Source,
    Split,
    draw,
    eight_bit,
    files_below,
    image_output,
    labels_by_slice,
    mask_output,
    pair_up,
    ranked,
    read_scan,
    share_out,
)
from recap.errors import require
from recap.io.window import apply_window

SLICES = range(60, 100)
TEST_SLICES, POOL_SLICES = (60, 68, 76, 84, 92), (60, 70, 80, 90)
POOL_NORMAL_SLICES = (60, 99)
# How many patients; of their normal slices as many are kept as were published.
ABNORMAL_PATIENTS = {"test": 615, "valid": 11}
NORMAL_PATIENTS = {"test": 45, "valid": 39, "train": 424}
MOST_NORMAL: dict[Split, int] = {"test": 640, "train": 7500}
WHITE_PERCENTILE = 99.5

_FLAIR = re.compile(r"BraTS2021_(\d+)_flair\.nii(?:\.gz)?")
_SEG = re.compile(r"BraTS2021_(\d+)_seg\.nii(?:\.gz)?")
_SHARED = (
    "BrainMRI: as published, the pool's abnormal patients are test patients too and some slices "
    "are in both; --patient-split keeps them apart."
)


Facts = Mapping[str, Mapping[str, list[int]]]
Cuts = dict[str, list[Cut]]


def plan(raw: Path, options: PrepareOptions) -> Plan:
    """Look into every annotation first: it decides which slices are normal."""
    require("nibabel", "volumes")
    files = files_below(raw, "BraTS2021_*.nii*")
    # The challenge's validation patients have no annotation, and the benchmark none of them.
    unused = [path for path in files if "validation" in str(path.relative_to(raw)).lower()]
    found = pair_up(set(files) - set(unused), _FLAIR, _SEG)
    if not found.pairs and not found.errors:
        raise SOURCE.wrong_folder(raw, "no BraTS2021_*_flair.nii.gz in it")
    pairs = found.pairs[: options.limit]
    skipped = {f"BraTS2021_{m[1]}" for path in unused if (m := _FLAIR.fullmatch(path.name))}
    return Plan(
        probes=tuple(Probe(p.number, (p.labels,), partial(look, p.labels)) for p in pairs),
        choose=lambda facts: _choose(pairs, facts, options),
        skipped=tuple(Note(name, "a validation patient without annotation") for name in skipped),
        errors=found.errors,
        caveats=() if options.patient_split else (_SHARED,),
    )


def look(seg: Path) -> dict[str, list[int]]:
    """Find which of the slices 60 to 99 have tumour, and which have none."""
    labels = labels_by_slice(seg)
    present = [number for number in SLICES if number < len(labels)]
    return {
        "tumour": [number for number in present if labels[number]],
        "normal": [number for number in present if not labels[number]],
    }


def make(patient: str, flair: Path, seg: Path, cuts: tuple[Cut, ...]) -> Iterator[Output]:
    """The chosen slices of one patient, with masks of the whole tumour."""
    scan = read_scan(flair, seg)
    inside = scan.values[scan.values > 0]
    white = float(np.percentile(inside, WHITE_PERCENTILE)) if inside.size else 1.0
    for cut in cuts:
        name = f"{patient}_{cut.number}.png"
        pixels = eight_bit(apply_window(scan.pixels(cut.number), (0.0, white)))
        yield image_output(cut.split, cut.abnormal, name, pixels)
        if cut.abnormal:
            yield mask_output(cut.split, name, scan.labels(cut.number) > 0)


def _choose(pairs: tuple[Pair, ...], facts: Facts, options: PrepareOptions) -> Plan:
    cuts: Cuts = {}
    _add_abnormal(cuts, facts, options)
    _add_normal(cuts, facts, options)
    items = tuple(
        Item(
            pair.number,
            (pair.image, pair.labels),
            partial(make, pair.number, pair.image, pair.labels, tuple(sorted(cuts[pair.number]))),
        )
        for pair in pairs
        if pair.number in cuts
    )
    unused = (pair.number for pair in pairs if pair.number in facts and pair.number not in cuts)
    return Plan(items, skipped=tuple(Note(name, "no slice of it is needed") for name in unused))


def _add_abnormal(cuts: Cuts, facts: Facts, options: PrepareOptions) -> None:
    listed = _listed(options.pool_abnormal, facts, "tumour")
    tested = [patient for patient in facts if {*TEST_SLICES} <= {*facts[patient]["tumour"]}]
    pooled = [patient for patient in facts if {*POOL_SLICES} <= {*facts[patient]["tumour"]}]
    share = share_out(len(tested), ABNORMAL_PATIENTS)
    pool = draw({*pooled, *listed}, share["valid"], "brain pool", listed)
    candidates = [p for p in tested if not (options.patient_split and p in pool)]
    for patient in draw(candidates, ABNORMAL_PATIENTS["test"], "brain test"):
        _add(cuts, patient, TEST_SLICES, "test", True)
    for patient in pool:
        whole = POOL_SLICES if patient in pooled else ()
        _add(cuts, patient, {*whole, *listed.get(patient, ())}, "valid", True)


def _add_normal(cuts: Cuts, facts: Facts, options: PrepareOptions) -> None:
    listed = _listed(options.pool_normal, facts, "normal")
    free = [p for p in facts if facts[p]["normal"] and (p in listed or p not in cuts)]
    share = share_out(len(free), NORMAL_PATIENTS)
    pool = draw(free, share["valid"], "brain pool", listed)
    for patient in pool:
        ends = [n for n in POOL_NORMAL_SLICES if n in facts[patient]["normal"]]
        one = (ends or facts[patient]["normal"])[:1]
        _add(cuts, patient, listed.get(patient, one), "valid", False)
    rest = ranked((p for p in free if p not in pool and p not in cuts), "brain normal")
    parts: dict[Split, list[str]] = {"test": rest[: share["test"]]}
    if options.train:
        parts["train"] = rest[share["test"] :]
    for split, patients in parts.items():
        left = MOST_NORMAL[split]
        for patient in patients:
            numbers = facts[patient]["normal"][:left]
            _add(cuts, patient, numbers, split, False)
            left -= len(numbers)


def _add(cuts: Cuts, patient: str, numbers: Any, split: Split, abnormal: bool) -> None:
    if numbers:
        cuts.setdefault(patient, []).extend(Cut(number, split, abnormal) for number in numbers)


def _listed(names: tuple[str, ...], facts: Facts, kind: str) -> dict[str, list[int]]:
    """The slices of published lists that this data has in this class, by patient."""
    found: dict[str, list[int]] = {}
    for name in names:
        patient, _, number = name.removesuffix(".png").rpartition("_")
        if patient in facts and number.isdigit() and int(number) in facts[patient][kind]:
            found.setdefault(patient, []).append(int(number))
    return found


SOURCE = Source(
    name="brainmri",
    domain="Brain",
    describe=(
        "BraTS2021 Task 1, training part: from the challenge's site on Synapse after registration "
        "(free for all purposes if cited), or its copy on Kaggle."
    ),
    expected=(
        "  BraTS2021_00000/\n"
        "    BraTS2021_00000_flair.nii.gz\n"
        "    BraTS2021_00000_seg.nii.gz\n"
        "  BraTS2021_00002/ …                  (other modalities may be there)"
    ),
    plan=plan,
    packages=("nibabel",),
)
