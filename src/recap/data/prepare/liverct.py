"""LiverCT from BTCV (normal training slices) and LiTS (pool and test).

Public: axial slices 512 × 512 in an abdominal window; train is BTCV; abnormal slices are LiTS's;
the counts and the names <volume>_<slice>.png. Inferred from counts and published names, not stated
anywhere: normal pool and test slices are LiTS's too, of its volumes 1 to 10, and one slice in ten
(166 of 1,659) is in the pool, between its neighbours in test. Not public, hence ours: that all
slices which show liver are taken, which one in ten (by SHA-256 rank; those of published lists come
first where these are given), and the window (−160 to 240 HU). `organ_only` blackens what is not
annotated as liver or lesion.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from recap.data.prepare.plan import (
    Cut,
    Item,
    Note,
    Output,
    Pair,
    Paired,
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
    read_scan,
)
from recap.errors import require
from recap.io.window import CT_WINDOWS, apply_window

LITS_NUMBERS = range(1, 11)
LITS_LIVER, LITS_LESION, BTCV_LIVER = 1, 2, 6
ONE_IN = 10
# Of ten volumes, so that the pool has lesions of more than one patient.
POOL_VOLUMES_ONE_IN = 5

_LITS = re.compile(r"volume-(\d+)\.nii(?:\.gz)?"), re.compile(r"segmentation-(\d+)\.nii(?:\.gz)?")
_BTCV = re.compile(r"img(\d{4})\.nii(?:\.gz)?"), re.compile(r"label(\d{4})\.nii(?:\.gz)?")
_SHARED = (
    "LiverCT: as published, pool and test are slices of the same ten volumes, often neighbours; "
    "--patient-split keeps the volumes apart."
)


Facts = Mapping[str, Mapping[str, list[int]]]
Slices = dict[tuple[str, int], bool]
"""Whether a slice (volume, number) shows a lesion."""


def plan(raw: Path, options: PrepareOptions) -> Plan:
    """Look into the labels first: they decide which slices show liver, and which a lesion."""
    require("nibabel", "volumes")
    files = [path for path in files_below(raw, "*.nii*") if path.is_file()]
    lits = _lits(files, options.limit)
    # BTCV's own test scans have no labels, so nobody knows where the liver is.
    parts = {path: [each.lower() for each in path.relative_to(raw).parts] for path in files}
    btcv = pair_up((path for path in files if "testing" not in parts[path]), *_BTCV)
    if not lits.pairs:
        raise SOURCE.wrong_folder(raw, "no volume-1.nii with segmentation-1.nii, … in it")
    pairs = {f"lits-{pair.number}": pair for pair in lits.pairs}
    if options.train:
        pairs |= {f"btcv-{pair.number}": pair for pair in btcv.pairs[: options.limit]}
    none = (Note("BTCV", "no img0001.nii.gz with label0001.nii.gz, …: train/ stays empty"),)
    return Plan(
        probes=tuple(Probe(key, (p.labels,), partial(look, p.labels)) for key, p in pairs.items()),
        choose=lambda facts: _choose(pairs, facts, options),
        errors=lits.errors + ((btcv.errors if btcv.pairs else none) if options.train else ()),
        caveats=() if options.patient_split else (_SHARED,),
    )


def look(labels: Path) -> dict[str, list[int]]:
    """The slices where each label occurs."""
    found: dict[str, list[int]] = {}
    for number, values in enumerate(labels_by_slice(labels)):
        for value in values:
            found.setdefault(str(value), []).append(number)
    return found


def make(
    name: str, image: Path, labels: Path, liver: tuple[int, ...], only: bool, cuts: tuple[Cut, ...]
) -> Iterator[Output]:
    """The chosen slices of one volume, with masks of the lesions."""
    scan = read_scan(image, labels)
    for cut in cuts:
        file = f"{name}_{cut.number}.png"
        pixels = apply_window(scan.pixels(cut.number), CT_WINDOWS["abdomen"])
        if only:
            pixels = np.where(np.isin(scan.labels(cut.number), liver), pixels, 0)
        yield image_output(cut.split, cut.abnormal, file, eight_bit(pixels))
        if cut.abnormal:
            yield mask_output(cut.split, file, scan.labels(cut.number) == LITS_LESION)


def _lits(files: list[Path], limit: int | None) -> Paired:
    """The ten volumes of the benchmark; one that is not there is an error."""
    wanted = [str(number) for number in LITS_NUMBERS[:limit]]
    found = pair_up(files, *_LITS)
    pairs = tuple(pair for pair in found.pairs if str(int(pair.number)) in wanted)
    present = {str(int(pair.number)) for pair in pairs}
    halves = {note.key.split("-")[1].split(".")[0]: note for note in found.errors}
    missing = "is not there, or not with its segmentation. Download it again."
    errors = (
        halves.get(number, Note(f"volume-{number}.nii", missing))
        for number in wanted
        if number not in present
    )
    return Paired(pairs, tuple(errors))


def _choose(pairs: dict[str, Pair], facts: Facts, options: PrepareOptions) -> Plan:
    lits = {key: labels for key, labels in facts.items() if key.startswith("lits-")}
    slices: Slices = {
        (key, number): number in labels.get(str(LITS_LESION), [])
        for key, labels in lits.items()
        for number in {*labels.get(str(LITS_LIVER), []), *labels.get(str(LITS_LESION), [])}
    }
    pool = _pool_volumes(slices) if options.patient_split else _pool_slices(slices, options)
    cuts: dict[str, list[Cut]] = {}
    for (key, number), abnormal in sorted(slices.items()):
        split: Split = "valid" if (key, number) in pool else "test"
        cuts.setdefault(key, []).append(Cut(number, split, abnormal))
    for key in facts.keys() - lits.keys():
        cuts[key] = [Cut(n, "train", False) for n in facts[key].get(str(BTCV_LIVER), [])]
    empty = (key for key in facts if not cuts.get(key))
    return Plan(
        tuple(_item(key, pairs[key], tuple(cuts[key]), options) for key in cuts if cuts[key]),
        skipped=tuple(Note(key, "no slice shows annotated liver") for key in empty),
    )


def _pool_slices(slices: Slices, options: PrepareOptions) -> set[tuple[str, int]]:
    """One in ten of each class, wherever they lie."""
    chosen: set[tuple[str, int]] = set()
    for abnormal, listed in ((False, options.pool_normal), (True, options.pool_abnormal)):
        names = {
            f"{key.removeprefix('lits-')}_{number}.png": (key, number)
            for (key, number), lesion in slices.items()
            if lesion == abnormal
        }
        files = draw(names, round(len(names) / ONE_IN), "liver pool", listed)
        chosen |= {names[file] for file in files}
    return chosen


def _pool_volumes(slices: Slices) -> set[tuple[str, int]]:
    """Whole volumes, those with both classes first."""
    kinds: dict[str, set[bool]] = {}
    for (key, _), abnormal in slices.items():
        kinds.setdefault(key, set()).add(abnormal)
    both = [key for key, classes in kinds.items() if len(classes) == 2]
    candidates = both if len(both) > 1 else list(kinds)
    count = max(1, len(kinds) // POOL_VOLUMES_ONE_IN) if len(kinds) > 1 else 0
    volumes = draw(candidates, count, "liver pool")
    return {place for place in slices if place[0] in volumes}


def _item(key: str, pair: Pair, cuts: tuple[Cut, ...], options: PrepareOptions) -> Item:
    liver = (LITS_LIVER, LITS_LESION) if key.startswith("lits-") else (BTCV_LIVER,)
    name = str(int(pair.number))
    work = partial(make, name, pair.image, pair.labels, liver, options.organ_only, cuts)
    return Item(key, (pair.image, pair.labels), work)


SOURCE = Source(
    name="liverct",
    domain="Liver",
    describe=(
        "BTCV (RawData.zip of the abdomen challenge on Synapse, free registration, CC BY 4.0) and "
        "LiTS (training batches of the challenge on CodaLab, or its copy on Kaggle; CC BY-NC-SA), "
        "side by side in one folder."
    ),
    expected=(
        "  LiTS/ … volume-1.nii, segmentation-1.nii … volume-10.nii, segmentation-10.nii\n"
        "  BTCV/RawData/Training/img/img0001.nii.gz, label/label0001.nii.gz …\n"
        "  (.nii or .nii.gz, at any depth)"
    ),
    plan=plan,
    packages=("nibabel",),
)
