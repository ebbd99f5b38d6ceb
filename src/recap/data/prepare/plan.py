"""The contract between the engine, `run.py`, and the raw sources, one file each.

A source looks at the raw folder and says what is to be done, without doing it:

    SOURCE = Source(name="brainmri", domain="Brain", describe="…", expected="…", plan=plan)

    def plan(raw: Path, options: PrepareOptions) -> Plan: ...

`plan` lists files and reads small tables only. The work of an `Item` is a `functools.partial` of a
function of the module (it goes to another process) whose arguments tell all about themselves in
their `repr` (numbers, text, paths, tuples, frozen dataclasses; no sets, no arrays); it reads its
inputs and yields the files that it makes, which the engine writes. It is repeated when the inputs,
the function's name or the arguments change. Where the choice depends on what is inside the files,
the plan has `probes` whose work returns small facts, and `choose`, which turns those into the
final plan. The same inputs and options must give the same plan and the same bytes: no random
generator, no time, no folder order.
"""

import hashlib
import io
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage

from recap.data.folder import walk, walk_folders
from recap.errors import InputError
from recap.io.nifti import read_nifti
from recap.io.volume import Grid
from recap.types import BoolArray, FloatArray

Split = Literal["train", "valid", "test"]
Labels = NDArray[np.uint8]


@dataclass(frozen=True)
class Output:
    """One finished file: `path` is relative to the domain's folder, with forward slashes."""

    path: str
    data: bytes


@dataclass(frozen=True)
class Item:
    """A unit of work, such as one patient: made whole or not at all, by one process."""

    key: str
    inputs: tuple[Path, ...]
    work: Callable[[], Iterable[Output]]


@dataclass(frozen=True)
class Probe:
    """A look into one input before the choice; the work returns what JSON can hold."""

    key: str
    inputs: tuple[Path, ...]
    work: Callable[[], Any]


@dataclass(frozen=True)
class Note:
    """An input that is left out, and why."""

    key: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """All that is to be made, or what must be looked at before that can be said.

    With `choose`, the probes run first and `choose` gets their facts by key (a probe that failed
    is missing); its plan takes the place of this one, and the notes of both are kept.
    `skipped` is left out by the rules, `errors` is missing or broken.
    """

    items: tuple[Item, ...] = ()
    skipped: tuple[Note, ...] = ()
    errors: tuple[Note, ...] = ()
    probes: tuple[Probe, ...] = ()
    choose: Callable[[Mapping[str, Any]], "Plan"] | None = None
    caveats: tuple[str, ...] = ()
    """What a user of the result must know, one sentence each, such as patients that are shared."""


@dataclass(frozen=True)
class PrepareOptions:
    """The user's choices; all of them are recorded in the manifest."""

    patient_split: bool = False
    """Pool, test and train share no patient; otherwise the published rule is followed."""
    train: bool = True
    """Also write `train/good`, the normal training images of the benchmark."""
    limit: int | None = None
    """At most this many patients, volumes or slides of each kind, to try things out."""
    pool_normal: tuple[str, ...] = ()
    """File names that belong into the pool as normal: those of the published support lists."""
    pool_abnormal: tuple[str, ...] = ()
    """The same for abnormal."""
    organ_only: bool = False
    """LiverCT: black outside the annotated liver."""
    masks: bool = False
    """HIS: also write the outlined tumour as masks, which the benchmark does not have."""


@dataclass(frozen=True)
class Source:
    """A raw data set that one domain of the benchmark is made from."""

    name: str
    domain: str
    """The benchmark's name of it: the result goes to `<domain>_AD`."""
    describe: str
    """What it is, where it is to be had and on which terms, in one or two sentences."""
    expected: str
    """The raw folder's tree as text, for help and for errors."""
    plan: Callable[[Path, PrepareOptions], Plan]
    packages: tuple[str, ...] = ()
    """Distributions, beyond numpy and Pillow, whose version may change the bytes."""
    revision: int = 1
    """Raised whenever the rules or the bytes of this source change."""

    def wrong_folder(self, raw: Path, seen: str) -> InputError:
        """The error for a folder that is not this source's."""
        return InputError(
            f"{raw}: {seen}. For '{self.name}' give the folder that looks like this:\n"
            f"{self.expected}\n{self.describe}"
        )


def rank(name: str, purpose: str = "") -> bytes:
    """A name's place in an order that depends on nothing else; purposes are independent."""
    # File names need not be valid UTF-8.
    return hashlib.sha256(f"{purpose}:{name}".encode(errors="surrogateescape")).digest()


def ranked(names: Iterable[str], purpose: str = "") -> list[str]:
    """The names in the order of their rank."""
    return sorted(names, key=lambda name: rank(name, purpose))


def draw(
    names: Iterable[str], count: int, purpose: str = "", first: Collection[str] = ()
) -> list[str]:
    """The first `count` names by rank; those in `first` come before and are never left out."""
    first, order = {*first}, ranked(names, purpose)
    wanted = [name for name in order if name in first]
    others = [name for name in order if name not in first]
    return wanted + others[: max(0, count - len(wanted))]


def share_out(total: int, published: Mapping[str, int]) -> dict[str, int]:
    """The published numbers, or their like where there is less to share out.

    Everyone gets one first, in the order given, then parts in proportion.
    """
    wanted = sum(published.values())
    if total >= wanted:
        return dict(published)
    given = {name: int(place < total) for place, name in enumerate(published)}
    left = total - sum(given.values())
    for name, number in published.items():
        given[name] += left * number // wanted
    given[max(published, key=lambda name: published[name])] += total - sum(given.values())
    return given


def files_below(raw: Path, pattern: str) -> list[Path]:
    """Files below a folder whose names fit, sorted."""
    return sorted(file for file in walk(raw) if fnmatchcase(file.name, pattern))


def folders_below(raw: Path, name: str) -> list[Path]:
    """Folders of a name below a folder, sorted."""
    return sorted(folder for folder in walk_folders(raw) if folder.name == name and folder != raw)


def png_bytes(pixels: NDArray[np.uint8]) -> bytes:
    """Encode grey (H, W) or RGB (H, W, 3) without any metadata, always with the same settings."""
    buffer = io.BytesIO()
    image = PillowImage.fromarray(np.ascontiguousarray(pixels))
    image.save(buffer, format="PNG", compress_level=6, optimize=False)
    return buffer.getvalue()


def eight_bit(unit: NDArray[Any]) -> NDArray[np.uint8]:
    """Round 0..1 to 0..255."""
    return np.rint(np.clip(unit, 0, 1) * 255).astype(np.uint8)


def image_output(split: Split, abnormal: bool, name: str, pixels: NDArray[np.uint8]) -> Output:
    """An image in its place: `<split>/{good,Ungood}/img/<name>`."""
    return Output(image_path(split, abnormal, name), png_bytes(pixels))


def mask_output(split: Split, name: str, mask: BoolArray) -> Output:
    """The mask of an abnormal image: `<split>/Ungood/anomaly_mask/<name>`, 0 and 255."""
    data = png_bytes(mask.astype(np.uint8) * 255)
    return Output(f"{split}/Ungood/anomaly_mask/{name}", data)


def image_path(split: Split, abnormal: bool, name: str) -> str:
    """Build the path of an image in the domain's folder."""
    return f"{split}/{'Ungood' if abnormal else 'good'}/img/{name}"


@dataclass(frozen=True)
class Pair:
    """An image volume and its labels."""

    number: str
    image: Path
    labels: Path


@dataclass(frozen=True)
class Paired:
    """The complete pairs in order, and what is wrong with the others."""

    pairs: tuple[Pair, ...]
    errors: tuple[Note, ...]


def pair_up(paths: Iterable[Path], image: re.Pattern[str], labels: re.Pattern[str]) -> Paired:
    """Match files whose names fit; each pattern captures the number."""
    found: dict[str, dict[str, list[Path]]] = {}
    for path in sorted(paths):
        for kind, pattern in (("image", image), ("labels", labels)):
            match = pattern.fullmatch(path.name)
            if match and not path.name.startswith("."):
                found.setdefault(match[1], {"image": [], "labels": []})[kind].append(path)
    pairs, errors = [], []
    for number, kinds in sorted(found.items(), key=lambda entry: int(entry[0])):
        if len(kinds["image"]) == len(kinds["labels"]) == 1:
            pairs.append(Pair(number, kinds["image"][0], kinds["labels"][0]))
        else:
            first = next(path.name for paths in kinds.values() for path in paths)
            errors.append(Note(first, _problem(kinds)))
    return Paired(tuple(pairs), tuple(errors))


def _problem(kinds: dict[str, list[Path]]) -> str:
    for kind, paths in kinds.items():
        if not paths:
            return f"its {kind} file is missing. Download it again."
    return f"there are {max(map(len, kinds.values()))} files of this name. Keep one."


class Cut(NamedTuple):
    """One slice to write."""

    number: int
    split: Split
    abnormal: bool


class Scan:
    """An image volume with its labels laid over it."""

    def __init__(self, values: FloatArray, labels: Labels, grid: Grid) -> None:
        self.values, self._labels, self._grid = values, labels, grid

    def pixels(self, stored: int) -> FloatArray:
        """The grey values of a slice, by its number in the stored array."""
        return self.values[_place(self._grid, stored)]

    def labels(self, stored: int) -> Labels:
        """The labels of a slice, by its number in the stored array."""
        return self._labels[_place(self._grid, stored)]


def read_scan(image: Path, labels: Path) -> Scan:
    """Read an image volume and its labels.

    Headers of public label files sometimes disagree with their image's; as everyone does, the
    arrays are laid over each other as they are stored.
    """
    stored, label_shape = _read_labels(labels)
    volume = read_nifti(image, "axial")
    if label_shape != volume.grid.shape:
        raise InputError(
            f"{labels}: has the shape {label_shape}, but {image.name} has {volume.grid.shape}. "
            "Download both again."
        )
    return Scan(volume.values, volume.grid.take(stored), volume.grid)


def labels_by_slice(path: Path) -> list[list[int]]:
    """The labels above zero that occur in each slice, in the stored order."""
    volume = read_nifti(path, "axial")
    count = len(volume.values)
    found = (np.unique(volume.values[_place(volume.grid, stored)]) for stored in range(count))
    return [[round(float(label)) for label in labels if label > 0] for labels in found]


def _read_labels(path: Path) -> tuple[Labels, tuple[int, int, int]]:
    """As stored; small integers, so that the large floats are gone before the image is read."""
    volume = read_nifti(path, "axial")
    whole: NDArray[Any] = np.clip(np.rint(volume.values), 0, 255).astype(np.uint8)
    return volume.grid.restore(whole), volume.grid.shape


def _place(grid: Grid, stored: int) -> int:
    """Find where a slice of the stored array stands in the stack."""
    count = grid.shape[grid.axes[0]]
    if not 0 <= stored < count:
        raise InputError(f"there is no slice {stored} in a volume of {count} slices.")
    return count - 1 - stored if grid.flipped[0] else stored
