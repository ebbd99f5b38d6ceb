"""What two sides of a data set share: files, pixels, neighbouring slices, patients."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from recap.data.fingerprints import Fingerprint, Thumbs
from recap.data.similar import Match, find_matches
from recap.errors import counted
from recap.progress import Progress, silent
from recap.types import CLASSES

Kind = Literal[
    "identical-file",
    "identical-pixels",
    "near-duplicate",
    "neighbour-slice",
    "same-patient",
    "duplicate-in-pool",
    "duplicate-in-test",
    "unreadable",
]
# From the strongest: a pair of images is reported under the first that holds.
LEAKS: tuple[Kind, ...] = (
    "identical-file",
    "identical-pixels",
    "near-duplicate",
    "neighbour-slice",
    "same-patient",
)
NOTES: tuple[Kind, ...] = ("duplicate-in-pool", "duplicate-in-test", "unreadable")

Side = Literal["pool", "test"]
_DUPLICATE: dict[Side, Kind] = {"pool": "duplicate-in-pool", "test": "duplicate-in-test"}

# Names that tell two patients apart are evidence; only pixels that are closer still outweigh it.
NEIGHBOUR_AGAINST_NAMES = 0.80

_WAYS = ("", "turned 90°", "turned 180°", "turned 270°")


@dataclass(frozen=True, eq=False)
class Audited:
    """One image of a split, and all that is known of whom it shows."""

    path: Path
    abnormal: bool
    fingerprint: Fingerprint
    listed: str = ""
    """The patient that an index or a manifest gives."""
    named: str = ""
    """The patient that the file's name gives."""
    slice: int | None = None

    @property
    def patient(self) -> str:
        """The patient by the best source there is."""
        return next(filter(None, self.sources), "")

    @property
    def sources(self) -> tuple[str, str, str]:
        """The patient by each source, the best first; "" where one does not tell."""
        return (self.listed, self.fingerprint.patient, self.named)


@dataclass(frozen=True)
class Finding:
    """A leak, with a file on both sides, or a note on a file of one split."""

    kind: Kind
    pool: Path | None
    test: Path | None
    detail: str
    score: float | None = None


Pair = tuple[tuple[int, int], Finding]


def find_leaks(
    pool: Sequence[Audited],
    test: Sequence[Audited],
    reach: int,
    progress: Progress = silent,
) -> list[Finding]:
    """All leaks between two splits, the strongest kinds first.

    A pair of images gives one finding, and so does every test image of a patient in the pool.
    """
    pairs: dict[tuple[int, int], Finding] = {}
    together = _same_patient(pool, test)
    for pair, finding in (
        *_identical(pool, test, "identical-file", lambda image: image.fingerprint.sha256),
        *_identical(pool, test, "identical-pixels", lambda image: image.fingerprint.pixels),
        # Before pixels: thin slices correlate with their neighbours as well as copies do.
        *_numbered_neighbours(pool, test, together, reach),
        *_alike(pool, test, progress),
    ):
        pairs.setdefault(pair, finding)
    ordered = sorted(pairs.items(), key=lambda item: (LEAKS.index(item[1].kind), item[0]))
    return [found for _, found in ordered] + list(_shared_patients(pool, test, together))


def find_duplicates(images: Sequence[Audited], split: Side) -> list[Finding]:
    """Images of one split that have the same pixels as an earlier one of it."""
    first: dict[str, Audited] = {}
    found = []
    for image in images:
        if not image.fingerprint.pixels:
            continue
        other = first.setdefault(image.fingerprint.pixels, image)
        if other is not image:
            detail = f"same pixels as {other.path.name}" + _label_note(other, image)
            found.append(_note(_DUPLICATE[split], image, split, detail))
    return found


def find_unreadable(images: Sequence[Audited], split: Side) -> list[Finding]:
    """Images that could not be compared."""
    return [
        _note("unreadable", image, split, image.fingerprint.problem)
        for image in images
        if image.fingerprint.problem
    ]


def _note(kind: Kind, image: Audited, split: Side, detail: str) -> Finding:
    pool, test = (image.path, None) if split == "pool" else (None, image.path)
    return Finding(kind, pool, test, detail)


def _same_patient(pool: Sequence[Audited], test: Sequence[Audited]) -> dict[int, list[int]]:
    """For each test image the pool images of its patient, by the best source that knows both."""
    by_source: list[dict[str, list[int]]] = [defaultdict(list) for _ in range(3)]
    for i, image in enumerate(pool):
        for source, patient in enumerate(image.sources):
            by_source[source][patient].append(i)
    together = {}
    for j, image in enumerate(test):
        likely = {
            i
            for source, patient in enumerate(image.sources)
            for i in (by_source[source].get(patient, ()) if patient else ())
        }
        certain = sorted(i for i in likely if _agree(pool[i], image))
        if certain:
            together[j] = certain
    return together


def _agree(first: Audited, second: Audited) -> bool | None:
    """Whether two images show one patient; None where no source knows both."""
    for one, other in zip(first.sources, second.sources, strict=True):
        if one and other:
            return one == other
    return None


def _identical(
    pool: Sequence[Audited],
    test: Sequence[Audited],
    kind: Kind,
    digest: Callable[[Audited], str],
) -> Iterator[Pair]:
    by_digest = defaultdict(list)
    for i, image in enumerate(pool):
        by_digest[digest(image)].append(i)
    for j, image in enumerate(test):
        for i in by_digest.get(digest(image), ()) if digest(image) else ():
            detail = "the same bytes" if kind == "identical-file" else "the same pixels"
            detail += _label_note(pool[i], image)
            yield (i, j), Finding(kind, pool[i].path, image.path, detail)


def _alike(pool: Sequence[Audited], test: Sequence[Audited], progress: Progress) -> Iterator[Pair]:
    (firsts, first_thumbs), (seconds, second_thumbs) = _thumbs(pool), _thumbs(test)
    for match in find_matches(first_thumbs, second_thumbs, progress):
        i, j = firsts[match.first], seconds[match.second]
        differ = _agree(pool[i], test[j]) is False
        if match.copy or not differ or match.score >= NEIGHBOUR_AGAINST_NAMES:
            kind: Kind = "near-duplicate" if match.copy else "neighbour-slice"
            detail = _match_detail(match) + _label_note(pool[i], test[j])
            score = round(match.score, 3)
            yield (i, j), Finding(kind, pool[i].path, test[j].path, detail, score)


def _thumbs(images: Sequence[Audited]) -> tuple[list[int], Thumbs]:
    readable = [(i, image.fingerprint.thumb) for i, image in enumerate(images)]
    kept = [(i, thumb) for i, thumb in readable if thumb is not None]
    return [i for i, _ in kept], np.stack([t for _, t in kept]) if kept else np.empty(
        (0,), np.uint8
    )


def _match_detail(match: Match) -> str:
    if not match.copy:
        return "by pixels: looks like the next slice"
    mirrored = "mirrored" if match.way >= 4 else ""
    turned = ", ".join(filter(None, (mirrored, _WAYS[match.way % 4])))
    return f"by pixels: a copy{', ' * bool(turned)}{turned}"


def _numbered_neighbours(
    pool: Sequence[Audited],
    test: Sequence[Audited],
    together: dict[int, list[int]],
    reach: int,
) -> Iterator[Pair]:
    for j, sharing in together.items():
        image = test[j]
        for i in sharing:
            one, other = pool[i].slice, image.slice
            if one is not None and other is not None and 1 <= abs(one - other) <= reach:
                detail = f"patient {image.patient}: slice {one} in the pool, {other} in test"
                yield (i, j), Finding("neighbour-slice", pool[i].path, image.path, detail)


def _shared_patients(
    pool: Sequence[Audited], test: Sequence[Audited], together: dict[int, list[int]]
) -> Iterable[Finding]:
    for j, sharing in sorted(together.items()):
        image = test[j]
        nearest = min(sharing, key=lambda i: (_apart(pool[i], image), i))
        detail = f"patient {image.patient} has {counted(len(sharing), 'pool image')}"
        yield Finding("same-patient", pool[nearest].path, image.path, detail)


def _apart(first: Audited, second: Audited) -> int:
    if first.slice is None or second.slice is None:
        return 0
    return abs(first.slice - second.slice)


def _label_note(first: Audited, second: Audited) -> str:
    if first.abnormal == second.abnormal:
        return ""
    return f"; labels differ ({CLASSES[first.abnormal]}, {CLASSES[second.abnormal]})"
