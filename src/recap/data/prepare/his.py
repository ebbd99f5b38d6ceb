"""HIS from Camelyon16: patches of lymph node slides, abnormal inside the outlined tumour.

Public: 256x256 patches of Camelyon16; train has 5,088 normal ones, the pool 236, test 2,000; labels
for images only, no masks. Not public, hence ours: the resolution (0.25 µm per pixel, about that of
the scans), 88 normal and 148 abnormal patches in the pool and 1,000 of each in test; that patches
lie side by side on a grid; that normal ones are tissue all over and come from slides without any
tumour, because not all tumour is outlined on the others; that abnormal ones have at least half of
their area inside the outlines; that pool and test come from the challenge's test slides where these
and their labels are there, else from the training slides; that all slides give about equally many;
and which patches (by SHA-256 rank). Every slide is of another patient.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from recap.data.prepare.plan import (
    Item,
    Note,
    Output,
    Plan,
    PrepareOptions,
    Probe,
    Source,
    Split,
    files_below,
    image_output,
    mask_output,
    rank,
    ranked,
    share_out,
)
from recap.errors import InputError, require
from recap.io.annotations import rasterise, read_annotations
from recap.io.slide import TileGrid, lay_tiles
from recap.io.slide_pixels import Slide
from recap.types import FloatArray

PATCH_PX, UM_PER_PX = 256, 0.25
# Small gaps between cells are part of tissue.
NORMAL_TISSUE, ABNORMAL_TISSUE, ABNORMAL_SHARE = 0.95, 0.5, 0.5
# A patch's share of tumour is counted on a raster of so many points to its side.
TUMOUR_POINTS = 16
MOST_PER_SLIDE = 256
NORMAL: dict[Split, int] = {"test": 1000, "valid": 88, "train": 5088}
ABNORMAL: dict[Split, int] = {"test": 1000, "valid": 148}

_NAME = re.compile(r"(normal|tumor|test)_\d+", re.IGNORECASE)
_SHARED = (
    "HIS: pool and test show other patches of the same slides; --patient-split keeps slides apart."
)
_LISTS = "HIS: published patches are numbered without their slides, so lists cannot be followed."


@dataclass(frozen=True)
class Specimen:
    """One slide, with the outlines of its tumour if it has any."""

    path: Path
    part: str
    """Training or test part of the challenge."""
    outlines: Path | None

    @property
    def name(self) -> str:
        """Its name, which is the patient's."""
        return self.path.stem

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files that it is read from."""
        return (self.path,) if self.outlines is None else (self.path, self.outlines)


class Patch(NamedTuple):
    """One patch to write: its upper left corner on the full-resolution slide."""

    row: int
    column: int
    split: Split


Facts = Mapping[str, Sequence[Sequence[int]]]
Group = tuple[list[Specimen], dict[Split, int]]


def plan(raw: Path, options: PrepareOptions) -> Plan:
    """Look for the patches of every slide first."""
    require("openslide", "slides")
    errors: list[Note] = []
    skipped: list[Note] = []
    specimens = _specimens(raw, errors, skipped)
    if not specimens and not errors:
        raise SOURCE.wrong_folder(raw, "no normal_*.tif, tumor_*.tif or labelled test_*.tif in it")
    # The limit holds for each kind of slide.
    kinds: dict[tuple[str, bool], list[Specimen]] = {}
    for one in specimens:
        kinds.setdefault((one.part, one.outlines is not None), []).append(one)
    kept = [one for kind in kinds.values() for one in kind[: options.limit]]
    caveats = () if options.patient_split else (_SHARED,)
    return Plan(
        probes=tuple(
            Probe(one.name, one.inputs, partial(look, one.path, one.outlines)) for one in kept
        ),
        choose=lambda facts: _choose(kept, facts, options),
        errors=tuple(errors),
        skipped=tuple(skipped),
        caveats=(*caveats, _LISTS) if options.pool_normal or options.pool_abnormal else caveats,
    )


def look(path: Path, outlines: Path | None) -> list[list[int]]:
    """The corners (row, column) of the patches that a slide may give, best ranked first."""
    slide = Slide(path)
    grid = lay_tiles(slide, UM_PER_PX, PATCH_PX)
    if outlines is None:
        fits = grid.shares >= NORMAL_TISSUE
    else:
        fits = (_tumour_shares(grid, outlines) >= ABNORMAL_SHARE) & (grid.shares >= ABNORMAL_TISSUE)
    # A patch over the edge would show the white beyond it.
    last = [(side - PATCH_PX * grid.source_px_per_px) for side in slide.size_hw]
    corners = (np.argwhere(fits) * grid.pitch_px).tolist()
    inside = [[row, column] for row, column in corners if row <= last[0] and column <= last[1]]
    return sorted(inside, key=lambda at: rank(_patch_name(path, *at), "his patch"))[:MOST_PER_SLIDE]


def make(
    path: Path, outlines: Path | None, patches: tuple[Patch, ...], masks: bool
) -> Iterator[Output]:
    """The chosen patches of one slide."""
    slide = Slide(path)
    step = UM_PER_PX / slide.um_per_px()
    size = (PATCH_PX, PATCH_PX)
    polygons = read_annotations(outlines) if outlines is not None and masks else []
    for row, column, split in patches:
        name = f"{_patch_name(path, row, column)}.png"
        pixels = slide.read((row, column), step, size)
        yield image_output(split, outlines is not None, name, pixels)
        if polygons:
            yield mask_output(split, name, rasterise(polygons, (row, column), step, size))


def _tumour_shares(grid: TileGrid, outlines: Path) -> FloatArray:
    """Measure how much of every tile is inside the outlines, by rows to need little memory."""
    polygons = read_annotations(outlines)
    rows, columns = grid.shares.shape
    shares = np.zeros((rows, columns), dtype=np.float32)
    step, size = grid.pitch_px / TUMOUR_POINTS, (TUMOUR_POINTS, columns * TUMOUR_POINTS)
    for row in range(rows):
        tumour = rasterise(polygons, (row * grid.pitch_px, 0), step, size)
        shares[row] = tumour.reshape(TUMOUR_POINTS, columns, TUMOUR_POINTS).mean(axis=(0, 2))
    return shares


def _choose(specimens: list[Specimen], facts: Facts, options: PrepareOptions) -> Plan:
    chosen: dict[str, list[Patch]] = {}
    usable = [one for one in specimens if facts.get(one.name)]
    for abnormal, published in ((False, NORMAL), (True, ABNORMAL)):
        own = [one for one in usable if (one.outlines is not None) == abnormal]
        for group, counts in _groups(own, published, options.patient_split):
            _deal(group, counts, facts, chosen)
    items = []
    for one in usable:
        patches = [p for p in chosen.get(one.name, ()) if options.train or p.split != "train"]
        if patches:
            work = partial(make, one.path, one.outlines, tuple(sorted(patches)), options.masks)
            items.append(Item(one.name, one.inputs, work))
    made = {item.key for item in items}
    return Plan(
        tuple(items),
        skipped=tuple(
            Note(one.name, "no patch of it is needed" if facts[one.name] else "no patch of it fits")
            for one in specimens
            if one.name in facts and one.name not in made
        ),
    )


def _groups(
    specimens: list[Specimen], published: dict[Split, int], patient_split: bool
) -> list[Group]:
    """Decide which slides give to which splits."""
    test = [one for one in specimens if one.part == "test"]
    training = [one for one in specimens if one.part != "test"]
    groups: list[Group] = [(specimens, published)]
    if test:
        train: dict[Split, int] = {s: n for s, n in published.items() if s == "train"}
        groups = [(test, {s: n for s, n in published.items() if s != "train"}), (training, train)]
    if patient_split:
        groups = [part for group in groups for part in _apart(*group)]
    return groups


def _apart(specimens: list[Specimen], counts: dict[Split, int]) -> list[Group]:
    """Every split its own slides, in proportion to its patches."""
    order = ranked((one.name for one in specimens), "his slide")
    by_name = {one.name: one for one in specimens}
    groups, share = [], share_out(len(order), {str(split): n for split, n in counts.items()})
    for split, count in counts.items():
        # There are more patches than slides to share out, so the shares add up to all slides.
        taken, order = order[: share[split]], order[share[split] :]
        groups.append(([by_name[name] for name in taken], {split: count}))
    return groups


def _deal(
    group: list[Specimen], counts: dict[Split, int], facts: Facts, chosen: dict[str, list[Patch]]
) -> None:
    """Deal out patches in rounds, one of each slide, so that no slide dominates a split."""
    rounds = sorted(
        (number, rank(one.name, "his round"), one.name, corner)
        for one in group
        for number, corner in enumerate(facts[one.name])
    )
    share = share_out(len(rounds), {str(split): n for split, n in counts.items()})
    for split in counts:
        taken, rounds = rounds[: share[split]], rounds[share[split] :]
        for _, _, name, (row, column) in taken:
            chosen.setdefault(name, []).append(Patch(row, column, split))


def _specimens(raw: Path, errors: list[Note], skipped: list[Note]) -> list[Specimen]:
    slides = _by_name(raw, "*.tif", errors)
    outlines = _by_name(raw, "*.xml", errors)
    labels = _test_labels(raw, slides, outlines)
    found = []
    for key, path in slides.items():
        part, drawn = key.partition("_")[0], outlines.get(key)
        tumour = part == "tumor" or (part == "test" and labels.get(key, False))
        if part == "test" and key not in labels:
            skipped.append(Note(path.stem, "a test slide whose label is not there"))
        elif tumour and drawn is None:
            errors.append(Note(path.stem, f"its outlines {path.stem}.xml are missing."))
        else:
            found.append(Specimen(path, part, drawn if tumour else None))
    return found


def _by_name(raw: Path, pattern: str, errors: list[Note]) -> dict[str, Path]:
    """Files with the challenge's names, by the name in small letters."""
    found: dict[str, Path] = {}
    for path in files_below(raw, pattern):
        if not _NAME.fullmatch(path.stem):
            continue
        if path.stem.lower() in found:
            errors.append(Note(str(path.relative_to(raw)), "a second copy. Keep one."))
        else:
            found[path.stem.lower()] = path
    return dict(sorted(found.items()))


def _test_labels(
    raw: Path, slides: Mapping[str, Path], outlines: Mapping[str, Path]
) -> dict[str, bool]:
    """Tell which test slides have tumour: by the challenge's table, or by their outlines."""
    for table in files_below(raw, "reference.csv"):
        try:
            with table.open(newline="", encoding="utf-8-sig") as stream:
                rows = [row for row in csv.reader(stream) if len(row) > 1]
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{table}: cannot be read ({error}). Download it again.") from error
        known = {"tumor": True, "normal": False}
        return {
            Path(row[0].strip()).stem.lower(): known[row[1].strip().lower()]
            for row in rows
            if row[1].strip().lower() in known
        }
    test = [key for key in slides if key.startswith("test_")]
    return {key: key in outlines for key in test} if any(k in outlines for k in test) else {}


def _patch_name(path: Path, row: int, column: int) -> str:
    return f"{path.stem}_x{column:06d}_y{row:06d}"


SOURCE = Source(
    name="his",
    domain="Histopathology",
    describe=(
        "Camelyon16: from GigaDB (data set 100439) or the open data bucket of the challenge (CC0). "
        "It has some 700 GB; a part of the slides will do for a start."
    ),
    expected=(
        "  training/normal/normal_001.tif …    training/tumor/tumor_001.tif …\n"
        "  training/lesion_annotations/tumor_001.xml …\n"
        "  testing/images/test_001.tif …       (if it is there, with its two label sources)\n"
        "  testing/lesion_annotations/test_001.xml …    testing/reference.csv\n"
        "  (or all slides in images/ and all outlines in annotations/)"
    ),
    plan=plan,
    packages=("openslide-python", "openslide-bin"),
)
