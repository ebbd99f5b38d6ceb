"""Everything that two sides of a data set share: files, pixels, neighbouring slices, patients."""

import os
import sqlite3
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from recap._process import Processes, run_each, usable_cores
from recap.data.similar import THUMB_PX, Fingerprint, Match, Thumbs, find_matches, fingerprint
from recap.errors import InputError, counted
from recap.progress import Progress, silent
from recap.types import CLASSES

# To be raised with every change to what a fingerprint holds.
_FORMAT = 2
_TABLE = (
    "CREATE TABLE IF NOT EXISTS seen (path BLOB PRIMARY KEY, size INTEGER, mtime_ns INTEGER, "
    "sha256 TEXT, pixels TEXT, patient TEXT, thumb BLOB)"
)
_CHUNK = 16
_SAVE_EVERY_S = 2.0
# Below this, starting processes takes longer than they save.
_WORTH_PROCESSES = 200
_MOST_WORKERS = 8
_DIED = "the process that read it died: out of memory, killed, or a decoder crashed. Look at it."
Done = tuple[Path, Fingerprint]
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


def read_fingerprints(
    paths: Sequence[Path],
    cache: Path | None = None,
    workers: int | None = None,
    progress: Progress = silent,
) -> dict[Path, Fingerprint]:
    """Fingerprint files; those in the cache with the same size and time are not read again."""
    if cache is None:
        return _all(paths, None, workers, progress)
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(cache, timeout=30)) as store:
            if store.execute("PRAGMA user_version").fetchone()[0] != _FORMAT:
                store.execute("DROP TABLE IF EXISTS seen")
                store.execute(f"PRAGMA user_version = {_FORMAT}")
            store.execute(_TABLE)
            store.commit()
            return _all(paths, store, workers, progress)
    except sqlite3.Error as error:
        raise InputError(f"{cache}: cannot be used ({error}). Delete it; it is remade.") from error


def _all(
    paths: Sequence[Path],
    store: sqlite3.Connection | None,
    workers: int | None,
    progress: Progress,
) -> dict[Path, Fingerprint]:
    stamps = {path: _stamp(path) for path in paths}
    known = {} if store is None else _recall(store, stamps)
    waiting = [path for path in stamps if path not in known]
    unsaved: list[Done] = []
    saved_at = time.monotonic()
    progress("Reading images", len(known), len(stamps), "")
    try:
        for path, made in _run(waiting, workers):
            known[path] = made
            unsaved.append((path, made))
            progress("Reading images", len(known), len(stamps), "")
            if store is not None and time.monotonic() - saved_at > _SAVE_EVERY_S:
                _save(store, unsaved, stamps)
                unsaved, saved_at = [], time.monotonic()
    finally:
        if store is not None:
            _save(store, unsaved, stamps)
    return {path: known[path] for path in stamps}


def _stamp(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return (-1, -1)
    return (stat.st_size, stat.st_mtime_ns)


def _key(path: Path) -> bytes:
    """A file's path as the system has it: names need not be text, which SQLite insists on."""
    return os.fsencode(path.absolute())


def _recall(
    store: sqlite3.Connection, stamps: dict[Path, tuple[int, int]]
) -> dict[Path, Fingerprint]:
    known = {}
    for path, stamp in stamps.items():
        row = store.execute(
            "SELECT size, mtime_ns, sha256, pixels, patient, thumb FROM seen WHERE path = ?",
            (_key(path),),
        ).fetchone()
        if row is not None and tuple(row[:2]) == stamp:
            values = np.frombuffer(zlib.decompress(row[5]), np.uint8)
            thumb = values.reshape(THUMB_PX, THUMB_PX)
            known[path] = Fingerprint(row[2], row[3], row[4], thumb)
    return known


def _save(
    store: sqlite3.Connection, made: Sequence[Done], stamps: dict[Path, tuple[int, int]]
) -> None:
    with store:
        store.executemany(
            "INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    _key(path),
                    *stamps[path],
                    one.sha256,
                    one.pixels,
                    one.patient,
                    zlib.compress(one.thumb.tobytes(), 1),
                )
                for path, one in made
                if one.thumb is not None
            ],
        )


def _run(paths: Sequence[Path], workers: int | None) -> Iterator[Done]:
    if workers is None:
        workers = min(usable_cores(), _MOST_WORKERS) if len(paths) >= _WORTH_PROCESSES else 1
    if workers <= 1:
        return map(_read, paths)
    engine = Processes(workers, queued=2)
    return (done for _, done in run_each(_read, paths, engine, _unread, at_once=_CHUNK))


def _read(path: Path) -> Done:
    return path, fingerprint(path)


def _unread(path: Path, reason: str) -> Done:
    return path, Fingerprint(problem=f"{path}: {_DIED}")


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
    """Tell whether two images show one patient; None where no source knows both."""
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
