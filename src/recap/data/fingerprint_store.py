"""Fingerprints of many files: on several processes, and kept, so that a killed run goes on."""

import os
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from recap._process import Processes, run_each, usable_cores
from recap.data.fingerprints import THUMB_PX, Fingerprint, fingerprint
from recap.errors import InputError
from recap.progress import Progress, silent

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
            return _all(paths, _prepared(store), workers, progress)
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


def _prepared(store: sqlite3.Connection) -> sqlite3.Connection:
    if store.execute("PRAGMA user_version").fetchone()[0] != _FORMAT:
        store.execute("DROP TABLE IF EXISTS seen")
        store.execute(f"PRAGMA user_version = {_FORMAT}")
    store.execute(_TABLE)
    store.commit()
    return store


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
