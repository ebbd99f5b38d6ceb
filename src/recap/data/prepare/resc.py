"""RESC from the AI Challenger 2018 retinal oedema data: B-scans with and without lesions.

Public: the counts and the names <volume>_<scan>.png. Inferred from them, not stated anywhere:
train (4,297) is the normal B-scans of the 70 training volumes; pool (115) and test (1,805) share
out all 1,920 of the 15 validation volumes; the abnormal names that the published lists have of a
volume stand twelve scans apart, or multiples of it. Not public, hence ours: volumes are numbered
in the order of their folders' names; the pool has every twelfth abnormal scan of a volume,
starting with its first (or in step with the published lists where these are given), and one in 24
of the normal ones (by SHA-256 rank, listed ones first). Any label (oedema, fluid, detachment)
counts as lesion.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from recap.data.folder import natural_key
from recap.data.prepare.plan import (
    Item,
    Note,
    Output,
    Plan,
    PrepareOptions,
    Probe,
    Source,
    Split,
    draw,
    eight_bit,
    folders_below,
    image_output,
    mask_output,
)
from recap.io.raster import read_raster
from recap.types import BoolArray

ABNORMAL_ONE_IN, NORMAL_ONE_IN = 12, 24
PATIENTS_ONE_IN = 15
_PARTS = {"train": "Edema_trainingset", "valid": "Edema_validationset"}
_SHARED = (
    "RESC: as published, pool and test are B-scans of the same volumes, often neighbours; "
    "--patient-split keeps patients apart."
)


class Scan(NamedTuple):
    """One B-scan of a numbered volume."""

    key: str
    image: Path
    labels: Path
    train: bool
    patient: str
    volume: int
    number: int

    @property
    def file(self) -> str:
        """The published name."""
        return f"{self.volume}_{self.number}.png"


def plan(raw: Path, options: PrepareOptions) -> Plan:
    """Look at all labels first: they decide which scans are normal."""
    parents = [images.parent for images in folders_below(raw, "original_images")]
    folders = {
        part: next((folder for folder in parents if folder.name == name), None)
        for part, name in _PARTS.items()
    }
    held_out, train = folders["valid"], folders["train"] if options.train else None
    if held_out is None:
        raise SOURCE.wrong_folder(raw, "no Edema_validationset/original_images in it")
    errors: list[Note] = []
    scans = _scans(held_out, False, options.limit, errors)
    if train is not None:
        scans += _scans(train, True, options.limit, errors)
    elif options.train:
        errors.append(Note("Edema_trainingset", "is not there: train/ stays empty."))
    return Plan(
        probes=tuple(Probe(s.key, (s.labels,), partial(look, s.labels)) for s in scans),
        choose=lambda facts: _choose(scans, facts, options),
        errors=tuple(errors),
        caveats=() if options.patient_split else (_SHARED,),
    )


def look(labels: Path) -> bool:
    """Tell whether any lesion is labelled."""
    return bool(_lesion(labels).any())


def make(image: Path, labels: Path, name: str, split: Split, abnormal: bool) -> Iterator[Output]:
    """One B-scan, with its mask if it is abnormal."""
    yield image_output(split, abnormal, name, eight_bit(read_raster(image).pixels))
    if abnormal:
        yield mask_output(split, name, _lesion(labels))


def _lesion(labels: Path) -> BoolArray:
    pixels = read_raster(labels).pixels
    return np.asarray((pixels if pixels.ndim == 2 else pixels.max(axis=2)) > 0)


def _scans(part: Path, train: bool, limit: int | None, errors: list[Note]) -> list[Scan]:
    scans: list[Scan] = []
    volumes = sorted(path for path in (part / "original_images").iterdir() if path.is_dir())
    for volume, folder in list(enumerate(volumes, start=1))[:limit]:
        stem = folder.name.removesuffix(".img")
        labels = part / "label_images" / f"{stem}_labelMark"
        if not labels.is_dir():
            errors.append(Note(f"{part.name}/{folder.name}", "its label folder is missing."))
            continue
        for image in sorted(folder.glob("*.bmp"), key=natural_key):
            key = f"{part.name}/{folder.name}/{image.stem}"
            if not image.stem.isdigit():
                errors.append(Note(key, "its name is not the number of a scan."))
                continue
            patient, number = stem.split("_")[0], int(image.stem)
            scans.append(Scan(key, image, labels / image.name, train, patient, volume, number))
    return scans


def _choose(scans: list[Scan], facts: Mapping[str, bool], options: PrepareOptions) -> Plan:
    looked = [scan for scan in scans if scan.key in facts]
    held_out = [scan for scan in looked if not scan.train]
    pool = (_pool_patients if options.patient_split else _pool_scans)(held_out, facts, options)
    taken = {scan.patient for scan in scans if not scan.train} if options.patient_split else ()
    items, skipped = [], set()
    for scan in looked:
        abnormal = facts[scan.key]
        split: Split = "train" if scan.train else "valid" if scan.key in pool else "test"
        if scan.train and scan.patient in taken:
            skipped.add(Note(scan.key.rpartition("/")[0], "its patient is in pool or test"))
        elif not (scan.train and abnormal):
            work = partial(make, scan.image, scan.labels, scan.file, split, abnormal)
            items.append(Item(scan.key, (scan.image, scan.labels), work))
    return Plan(tuple(items), skipped=tuple(skipped))


def _pool_scans(scans: list[Scan], facts: Mapping[str, bool], options: PrepareOptions) -> set[str]:
    """Every twelfth abnormal scan of each volume, and one in 24 of all normal ones."""
    pool: set[str] = set()
    for volume in {scan.volume for scan in scans}:
        abnormal = [scan for scan in scans if scan.volume == volume and facts[scan.key]]
        listed = [scan for scan in abnormal if scan.file in options.pool_abnormal]
        start = abnormal.index(listed[0]) % ABNORMAL_ONE_IN if listed else 0
        pool |= {scan.key for scan in [*listed, *abnormal[start::ABNORMAL_ONE_IN]]}
    normal = {scan.file: scan.key for scan in scans if not facts[scan.key]}
    count = max(1, round(len(normal) / NORMAL_ONE_IN))
    return pool | {normal[n] for n in draw(normal, count, "resc pool", options.pool_normal)}


def _pool_patients(
    scans: list[Scan], facts: Mapping[str, bool], options: PrepareOptions
) -> set[str]:
    """All scans of one patient in fifteen, those with both classes first."""
    kinds: dict[str, set[bool]] = {}
    for scan in scans:
        kinds.setdefault(scan.patient, set()).add(facts[scan.key])
    both = [patient for patient, classes in kinds.items() if len(classes) == 2]
    count = max(1, len(kinds) // PATIENTS_ONE_IN) if len(kinds) > 1 else 0
    patients = draw(both if len(both) > 1 else list(kinds), count, "resc pool")
    return {scan.key for scan in scans if scan.patient in patients}


SOURCE = Source(
    name="resc",
    domain="Retina_RESC",
    describe=(
        "The retinal oedema segmentation data of AI Challenger 2018 (fl2018), research use only; "
        "the challenge's site is gone, the P-Net repository on GitHub says where copies are."
    ),
    expected=(
        "  Edema_trainingset/\n"
        "    original_images/PC001_…_cube_z.img/1.bmp … 128.bmp\n"
        "    label_images/PC001_…_cube_z_labelMark/1.bmp … 128.bmp\n"
        "  Edema_validationset/                (the same inside)"
    ),
    plan=plan,
)
