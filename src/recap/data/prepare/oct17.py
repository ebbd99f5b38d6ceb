"""OCT17 from Kermany's OCT2017: JPEG files, kept byte for byte under their own names.

Public: the counts and names. They fit the Kaggle copy's own folders (inferred): train/NORMAL
(26,315 images), test/ (242 of each of the four classes) and, as the pool, val/ (eight of each). A
release without val/ is taken care of: then eight of each class leave test by SHA-256 rank (ours).
Names of published lists go into the pool, also those out of train/NORMAL. The patient is the
number in the name CLASS-PATIENT-N.jpeg.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from recap.data.prepare.plan import (
    Item,
    Note,
    Output,
    Plan,
    PrepareOptions,
    Source,
    Split,
    draw,
    folders_below,
    image_path,
    ranked,
)
from recap.io.raster import read_raster

CLASSES = ("CNV", "DME", "DRUSEN", "NORMAL")
POOL_PER_CLASS = 8
_NAME = re.compile(r"[A-Z]+-(\w+)-\d+\.jpe?g", re.IGNORECASE)
_SHARED = (
    "OCT17: as published, the same patient may be in pool, test and train; --patient-split "
    "keeps patients apart."
)


@dataclass(frozen=True)
class Scan:
    """One image of the raw folder."""

    path: Path
    part: str
    kind: str
    patient: str

    @property
    def key(self) -> str:
        """Its place in the raw folder."""
        return f"{self.part}/{self.kind}/{self.path.name}"

    @property
    def abnormal(self) -> bool:
        """True where it shows a disease."""
        return self.kind != "NORMAL"


def plan(raw: Path, options: PrepareOptions) -> Plan:
    """Everything is in the names."""
    tests = [path.parent for path in folders_below(raw, "NORMAL") if path.parent.name == "test"]
    if not tests:
        raise SOURCE.wrong_folder(raw, "no test/NORMAL in it")
    base = tests[0].parent
    wanted = [f"test/{kind}" for kind in CLASSES] + (["train/NORMAL"] if options.train else [])
    errors = [Note(name, "is not there.") for name in wanted if not (base / name).is_dir()]
    held_out = _scans(base, ("test", "val"), CLASSES, options.limit, errors)
    train = _scans(base, ("train",), ("NORMAL",), options.limit, errors) if options.train else []
    pool = (_pool_patients if options.patient_split else _pool_images)(held_out, train, options)
    taken = {scan.patient for scan in held_out} if options.patient_split else set()
    skipped = {scan.patient for scan in train if scan.patient in taken and scan.key not in pool}
    items = tuple(
        _item(scan, "valid" if scan.key in pool else "train" if scan.part == "train" else "test")
        for scan in [*held_out, *train]
        if scan.key in pool or scan.part != "train" or scan.patient not in taken
    )
    return Plan(
        items,
        skipped=(
            *(Note(f"train patient {p}", "is in pool or test") for p in skipped),
            *(Note(str(path.relative_to(raw)), "a second copy") for path in tests[1:]),
        ),
        errors=tuple(errors),
        caveats=() if options.patient_split else (_SHARED,),
    )


def copy(path: Path, target: str) -> Iterator[Output]:
    """The file as it is, once it has proved readable."""
    read_raster(path)
    yield Output(target, path.read_bytes())


def _item(scan: Scan, split: Split) -> Item:
    work = partial(copy, scan.path, image_path(split, scan.abnormal, scan.path.name))
    return Item(scan.key, (scan.path,), work)


def _scans(
    base: Path,
    parts: tuple[str, ...],
    kinds: tuple[str, ...],
    limit: int | None,
    errors: list[Note],
) -> list[Scan]:
    scans = []
    for part, kind in ((part, kind) for part in parts for kind in kinds):
        found = []
        for path in sorted((base / part / kind).glob("[!.]*.jp*g")):
            match = _NAME.fullmatch(path.name)
            if match is None:
                errors.append(Note(f"{part}/{kind}/{path.name}", "not named CLASS-PATIENT-N.jpeg."))
            else:
                found.append(Scan(path, part, kind, match[1]))
        kept = {*ranked({scan.patient for scan in found}, "oct17 limit")[:limit]}
        scans += [scan for scan in found if scan.patient in kept]
    return scans


def _pool_images(held_out: list[Scan], train: list[Scan], options: PrepareOptions) -> set[str]:
    """val/, or eight of each class of test/; and what published lists name."""
    listed = {*options.pool_normal, *options.pool_abnormal}
    pool = {scan.key for scan in [*held_out, *train] if scan.path.name in listed}
    own = {scan.key for scan in held_out if scan.part == "val"}
    if own:
        return pool | own
    for kind in CLASSES:
        keys = [scan.key for scan in held_out if scan.kind == kind]
        pool |= {*draw(keys, min(POOL_PER_CLASS, len(keys) // 2), "oct17 pool", pool)}
    return pool


def _pool_patients(held_out: list[Scan], train: list[Scan], options: PrepareOptions) -> set[str]:
    """All images of so many patients that each class has eight, or half of what there is."""
    pool: set[str] = set()
    for kind in CLASSES:
        own = [scan for scan in held_out if scan.kind == kind]
        wanted = min(POOL_PER_CLASS, len(own) // 2)
        for patient in ranked({scan.patient for scan in own}, "oct17 pool"):
            if sum(scan.patient in pool for scan in own) >= wanted:
                break
            pool.add(patient)
    return {scan.key for scan in held_out if scan.patient in pool}


SOURCE = Source(
    name="oct17",
    domain="Retina_OCT2017",
    describe=(
        "OCT2017 of Kermany and others: OCT2017.tar.gz on Mendeley Data (CC BY 4.0), or the "
        "Kaggle copy 'kermany2018', whose val/ is the published pool."
    ),
    expected=(
        "  train/NORMAL/NORMAL-1001666-1.jpeg …\n"
        "  test/CNV/CNV-1016042-1.jpeg …  test/DME/ …  test/DRUSEN/ …  test/NORMAL/ …\n"
        "  val/ …                              (the same four; in the Kaggle copy)"
    ),
    plan=plan,
)
