"""The contents of a data folder or manifest, and all that is wrong with it.

Fitting stops at the first problem; here every file is looked at and every problem is named.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from recap._download import sha256_of
from recap._process import usable_cores
from recap.data.benchmark import (
    SPLIT_FOLDERS,
    Layout,
    Listing,
    domain_folders,
    layout_of,
    list_split,
    misplaced_folders,
    paper_order,
    read_domain,
)
from recap.data.folder import list_masks, masks_among, pair_masks, walk
from recap.data.manifest import Split, read_manifest
from recap.data.supports import known_patient
from recap.errors import InputError, RecapError
from recap.io.decoding import not_there
from recap.io.formats import is_labelled_image
from recap.progress import Progress, silent
from recap.types import CLASSES, Image, Sample

ProblemKind = Literal[
    "layout",
    "manifest row",
    "missing file",
    "image without mask",
    "ambiguous mask",
    "orphan mask",
    "mask among images",
    "unreadable image",
    "unreadable mask",
    "mask of other size",
    "empty mask",
    "grey in mask",
    "duplicate",
]
PLAIN_FOLDERS = ("normal", "abnormal", "masks")
MARKS_NOTHING = "it marks nothing"
"""What is wrong with an empty mask."""
LOOKS_LIKE_MASK = (
    "black and white, as masks are, but given as an image. Are images and masks swapped?"
)
"""What is wrong with an image that looks like a mask."""
# Each thread holds one decoded image.
THREADS = min(4, usable_cores())


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: with which file, and why."""

    kind: ProblemKind
    path: str
    reason: str


@dataclass
class DataReport:
    """The contents of one data set; counts are of image files."""

    root: str
    name: str
    layout: Layout | None
    images: dict[Split, dict[str, int]] = field(default_factory=dict)
    masks: dict[Split, int] = field(default_factory=dict)
    patients: dict[Split, int] = field(default_factory=dict)
    patients_in_pool_and_test: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    """Images by width × height, the most frequent first."""
    colours: dict[str, int] = field(default_factory=dict)
    further: dict[str, int] = field(default_factory=dict)
    """Images of no known label in other folders than normal/ and abnormal/, counted by folder."""
    ignored: dict[str, int] = field(default_factory=dict)
    """Files that are neither images nor masks of the layout, counted by folder."""
    problems: list[Problem] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """All of the report, for a JSON file."""
        return asdict(self)


@dataclass(frozen=True)
class _Look:
    """The outcome of reading one image and its mask."""

    sha256: str = ""
    size: str = ""
    colour: str = ""
    problems: tuple[Problem, ...] = ()


def inspect_all(path: Path, progress: Progress = silent) -> list[DataReport]:
    """Inspect a data set, or all data sets in a folder, in the paper's order."""
    path = Path(path)
    if layout_of(path) or not path.is_dir():
        return [inspect_data(path, progress)]
    folders = domain_folders(path)
    reports = [inspect_data(folder, progress) for folder in folders]
    return sorted(reports, key=lambda r: paper_order(r.name)) or [inspect_data(path, progress)]


def inspect_data(path: Path, progress: Progress = silent) -> DataReport:
    """Look at every file of a data set: a folder of any known layout, or a CSV manifest."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: {not_there(path, 'folder or file')}", path=path)
    try:
        domain = read_domain(path)
    except InputError as error:
        name = path.resolve().name.removesuffix("_AD")
        problem = Problem("layout", str(path), _reason(error, path))
        return DataReport(str(path), name, None, problems=[problem])
    report = DataReport(str(path), domain.name, domain.layout)
    found, further = _survey(report, path, domain.layout)
    places = [
        (f"{split}, {CLASSES[sample.abnormal]}", sample)
        for split in found
        for sample in found[split]
    ] + [(f.parent.relative_to(path).as_posix(), Sample(f, False)) for f in further]
    looks = _look_at_all([sample for _, sample in places], progress)
    report.problems += [problem for look in looks for problem in look.problems]
    report.sizes = dict(Counter(look.size for look in looks if look.size).most_common())
    report.colours = dict(Counter(look.colour for look in looks if look.colour).most_common())
    _add_counts(report, found)
    report.problems += _duplicates(places, [look.sha256 for look in looks])
    return report


def _survey(
    report: DataReport, path: Path, layout: Layout
) -> tuple[dict[Split, list[Sample]], list[Path]]:
    """List the samples of each split and further images, adding to the report what does not fit."""
    if layout == "manifest":
        return _survey_manifest(report, path), []
    found = {}
    seen: set[Path] = set()
    for split in SPLIT_FOLDERS:
        files = list_split(path, layout, split)
        masks = _list_masks(report, files)
        seen.update(files.normal, files.abnormal, masks)
        found[split] = _survey_split(report, files, masks)
        if layout == "folders":
            report.problems += [
                Problem("layout", str(folder), reason)
                for folder, reason in misplaced_folders(path, files).items()
            ]
    if not any(found.values()):
        report.problems.append(Problem("layout", str(path), "no images in its folders"))
    extra = sorted(file for file in walk(path) if file not in seen)
    # Such as more-normal/, to calibrate with; a benchmark's other folders hold its own extras.
    further = [
        file
        for file in extra
        if layout == "folders"
        and file.relative_to(path).parts[0] not in PLAIN_FOLDERS
        and is_labelled_image(file)
    ]
    report.further = _by_folder(further, path)
    report.ignored = _by_folder(sorted(set(extra) - set(further)), path)
    return {split: samples for split, samples in found.items() if samples}, further


def _by_folder(files: Iterable[Path], root: Path) -> dict[str, int]:
    return dict(Counter(file.parent.relative_to(root).as_posix() for file in files))


def _list_masks(report: DataReport, files: Listing) -> list[Path]:
    masks: list[Path] = []
    for folder in files.mask_folders:
        try:
            masks += list_masks(folder)
        except InputError as error:
            report.problems.append(Problem("layout", str(folder), _reason(error, folder)))
    if len(files.mask_folders) > 1:
        names = " and ".join(folder.name for folder in files.mask_folders)
        folder = files.mask_folders[0].parent
        report.problems.append(Problem("layout", str(folder), f"masks in {names}; keep one"))
    return masks


def _which_mask(names: list[str]) -> str:
    """Advise where an image has several masks, or shares one with another image."""
    if len(names) == 1:
        return f"another image has its name too: whose is {names[0]}? Rename one image"
    return f"which of {', '.join(names)}? Merge them, or keep one"


def _survey_split(report: DataReport, files: Listing, masks: list[Path]) -> list[Sample]:
    pairs = pair_masks(files.abnormal, masks)
    if files.mask_folders:
        report.problems += [
            Problem("image without mask", str(image), f"none in {files.mask_folders[0]}")
            for image in pairs.unmatched
        ]
    report.problems += [
        Problem("orphan mask", str(mask), "belongs to no image") for mask in pairs.orphans
    ]
    report.problems += [
        Problem("ambiguous mask", str(image), _which_mask([mask.name for mask in several]))
        for image, several in pairs.ambiguous.items()
    ]
    report.problems += [
        Problem("mask among images", str(mask), f"looks like the mask of {image.name}")
        for images in (files.normal, files.abnormal)
        for mask, image in masks_among(images).items()
    ]
    return [Sample(p, False, domain=report.name) for p in files.normal] + [
        Sample(p, True, pairs.matched.get(p), report.name) for p in files.abnormal
    ]


def _survey_manifest(report: DataReport, path: Path) -> dict[Split, list[Sample]]:
    try:
        manifest = read_manifest(path, report.name)
    except InputError as error:
        report.problems.append(Problem("layout", str(path), _reason(error, path)))
        return {}
    report.problems += [Problem("manifest row", str(path), row) for row in manifest.wrong_rows]
    report.problems += [
        Problem("missing file", str(file), f"named in {path.name}") for file in manifest.missing
    ]
    return {split: samples for split, samples in manifest.samples.items() if samples}


def _look_at_all(samples: Sequence[Sample], progress: Progress) -> list[_Look]:
    looks = []
    with ThreadPoolExecutor(THREADS) as threads:
        try:
            for index, look in enumerate(threads.map(_look, samples)):
                progress("check", index, len(samples), samples[index].path.name)
                looks.append(look)
        finally:  # Ctrl-C would otherwise wait for all that is queued
            threads.shutdown(wait=False, cancel_futures=True)
    progress("check", len(samples), len(samples), "")
    return looks


def _look(sample: Sample) -> _Look:
    from recap.io import read_image

    try:
        digest = sha256_of(sample.path)
        image = read_image(sample.path)
    except (RecapError, OSError) as error:
        reason = _reason(error, sample.path)
        return _Look(problems=(Problem("unreadable image", str(sample.path), reason),))
    height, width = image.size_hw
    colour = "grey" if image.pixels.ndim == 2 else "RGB"
    problems = [] if sample.mask is None else [*_mask_problems(sample.mask, image.size_hw)]
    if sample.mask is not None and looks_like_mask(image):
        problems.append(Problem("mask among images", str(sample.path), LOOKS_LIKE_MASK))
    return _Look(digest, f"{width}x{height}", colour, tuple(problems))


def looks_like_mask(image: Image) -> bool:
    """Tell whether an image that has a mask is one itself: black, one other colour, no third."""
    pixels = image.pixels.reshape(*image.size_hw, -1)
    low, high = pixels.min(axis=(0, 1)), pixels.max(axis=(0, 1))
    dark, bright = (pixels == low).all(axis=2), (pixels == high).all(axis=2)
    return bool((low < high).any() and (dark | bright).all())


def _mask_problems(path: Path, size_hw: tuple[int, int]) -> Iterable[Problem]:
    from recap.io.raster import read_mask, unmarked_greys

    try:
        mask = read_mask(path)
    except (RecapError, OSError) as error:
        return [Problem("unreadable mask", str(path), _reason(error, path))]
    if mask.shape != size_hw:
        sizes = " but its image ".join(f"{w}x{h}" for h, w in (mask.shape, size_hw))
        return [Problem("mask of other size", str(path), f"it has {sizes}")]
    if not mask.any():
        return [Problem("empty mask", str(path), MARKS_NOTHING)]
    greys = ", ".join(f"{grey:.0%}" for grey in unmarked_greys(path))
    reason = f"areas of {greys} of full brightness count as healthy; if not, make them white"
    return [Problem("grey in mask", str(path), reason)] if greys else []


def _add_counts(report: DataReport, found: dict[Split, list[Sample]]) -> None:
    patients: dict[Split, set[str]] = {}
    try:
        patients = {split: {*map(known_patient, all_)} - {""} for split, all_ in found.items()}
    except InputError as error:  # the data set's own index of patients is damaged
        report.problems.append(Problem("layout", report.root, str(error)))
    for split, samples in found.items():
        labels = Counter(CLASSES[sample.abnormal] for sample in samples)
        report.images[split] = {label: labels[label] for label in CLASSES}
        report.masks[split] = sum(sample.mask is not None for sample in samples)
        report.patients[split] = len(patients.get(split, ()))
    both = patients.get("pool", set()) & patients.get("test", set())
    report.patients_in_pool_and_test = sorted(both)


def _duplicates(places: Sequence[tuple[str, Sample]], digests: Sequence[str]) -> Iterable[Problem]:
    """One problem per file that has the bytes of one before it."""
    groups: dict[str, list[tuple[str, Sample]]] = defaultdict(list)
    for place, digest in zip(places, digests, strict=True):
        if digest:
            groups[digest].append(place)
    for (where, first), *others in groups.values():
        for own, sample in others:
            reason = f"({own}) has the bytes of {first.path} ({where})"
            yield Problem("duplicate", str(sample.path), reason)


def _reason(error: Exception, path: Path) -> str:
    """The message without the file's name, which stands beside it."""
    return str(error).removeprefix(f"{path}: ")
