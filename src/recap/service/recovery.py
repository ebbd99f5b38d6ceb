"""Folders that the database does not know: what they are, made jobs and bundles again, or removed.

A job's folder has `job.json` and, when it was scored, a whole result; a bundle's has its name in a
file beside it. That is all that their rows need. What has less goes to DATA/lost, never away.
"""

import json
import re
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from recap._files import sync
from recap.errors import InputError, RecapError, counted
from recap.scoring.bundle import read_card
from recap.service.bundles import free_name
from recap.service.jobs import LANES, RECORD, NewJob
from recap.service.results import RESULT, summary_of
from recap.service.store import (
    BUNDLES,
    DATABASE,
    JOBS,
    DamagedDatabaseError,
    Store,
    confirm,
    hold,
)

_INSERT = (
    "INSERT INTO jobs (id, kind, lane, status, bundle, options, names, images, attempt, created,"
    " finished, result, summary, client_key) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_FINISH = (
    "UPDATE jobs SET status = 'done', finished = ?, result = ?, summary = ?, error = '',"
    " attempt = max(attempt, ?) WHERE id = ? AND status != 'done'"
)


@dataclass(frozen=True)
class Stray:
    """A folder without a row, and what can be told of it from what it holds."""

    folder: Path
    job: NewJob | None = None
    result: Path | None = None
    bundle: dict[str, Any] | None = None
    """Name, what it replaces, and when it was made."""

    @property
    def words(self) -> str:
        """A line for the list: what adopting makes of it."""
        if self.job is not None:
            end = "done" if self.result is not None or self.job.kind != "score" else "to be scored"
            return f"{self.job.kind} job, {counted(self.job.images, 'image')}, {end}"
        if self.result is not None:
            return "result of a job that the database takes for unfinished"
        if self.bundle is not None:
            return f"bundle '{self.bundle['name']}'"
        return "unknown: adopting moves it to lost/"


def open_to_recover(data: Path, replace_damaged: bool) -> Store:
    """Take hold of a data folder; a damaged database is set aside only if that is wanted."""
    if not any((data / name).exists() for name in (DATABASE, JOBS, BUNDLES)):
        raise InputError(
            f"{data} is no data folder of `recap serve`. Name the folder of its --data."
        )
    try:
        return Store(data, allow_unknown=True)
    except DamagedDatabaseError:
        if not replace_damaged:
            raise
    with hold(data):
        for part in data.glob(f"{DATABASE}*"):
            _set_aside(data, part)
    return Store(data, allow_unknown=True)


def strays(store: Store) -> list[Stray]:
    """List all folders that the database does not know."""
    return [_look_at(store, folder) for folder in store.unknown()]


def adopt(store: Store, found: Iterable[Stray]) -> None:
    """Make rows of folders, and move aside what is enough for none."""
    rest = []
    with store.transaction() as database:
        for stray in sorted(found, key=_age):
            if not _adopt_one(store, database, stray):
                rest.append(stray)
    for stray in rest:
        _set_aside(store.root, stray.folder)


def remove_all(store: Store, found: Iterable[Stray]) -> None:
    """Delete folders, as somebody asked for who has seen their list."""
    for stray in found:
        store.discard(stray.folder)


def _look_at(store: Store, folder: Path) -> Stray:
    if folder.parent == store.root / BUNDLES:
        return Stray(folder, bundle=_read_bundle(store, folder))
    if folder.parent == store.root / JOBS:
        return Stray(folder, job=_read_job(folder), result=_last_result(folder))
    whole = folder.parent.parent == store.root / JOBS and _read_result(folder) is not None
    return Stray(folder, result=folder if whole else None)


def _read_job(folder: Path) -> NewJob | None:
    try:
        job = TypeAdapter(NewJob).validate_json((folder / RECORD).read_bytes())
    except (OSError, ValidationError):
        return None
    return job if job.id == folder.name and (folder / "upload").is_dir() else None


def _read_bundle(store: Store, folder: Path) -> dict[str, Any] | None:
    try:
        read_card(folder)
        told = json.loads(store.bundle_record(folder.name).read_bytes())
        record = {key: told[key] for key in ("name", "replaces", "created")}
    except (RecapError, OSError, ValueError, KeyError, TypeError):
        return None
    return record


def _read_result(folder: Path) -> list[dict[str, Any]] | None:
    try:
        cases = json.loads((folder / RESULT).read_bytes())["cases"]
        summary_of(cases)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return list(cases)


def _last_result(folder: Path) -> Path | None:
    whole = [each for each in folder.glob("result-*") if _attempt(each) and _read_result(each)]
    return max(whole, key=_attempt, default=None)


def _attempt(folder: Path | None) -> int:
    found = re.fullmatch(r"(?:result|working)-(\d+)", folder.name) if folder else None
    return int(found[1]) if found else 0


def _age(stray: Stray) -> tuple[bool, float]:
    """Bundles first, so that the jobs which made them are known to be done; then the oldest."""
    if stray.bundle is not None:
        return False, float(stray.bundle["created"])
    return True, 0.0 if stray.job is None else stray.job.created


def _adopt_one(store: Store, database: sqlite3.Connection, stray: Stray) -> bool:
    if stray.bundle is not None:
        name = free_name(database, stray.bundle["name"], set())
        values = (name, stray.folder.name, stray.bundle["replaces"], stray.bundle["created"])
        database.execute(
            "INSERT INTO bundles (name, folder, replaces, created) VALUES (?, ?, ?, ?)", values
        )
        return True
    if stray.job is not None:
        _adopt_job(database, stray.job, stray)
        return True
    if stray.result is None or stray.folder.parent.parent != store.root / JOBS:
        return False
    summary = json.dumps(summary_of(_read_result(stray.result) or []))
    told = (_ended(stray.result), stray.result.name, summary, _attempt(stray.result))
    return database.execute(_FINISH, (*told, stray.folder.parent.name)).rowcount > 0


def _adopt_job(database: sqlite3.Connection, job: NewJob, stray: Stray) -> None:
    status, result, summary, finished = "queued", "", {}, None
    made = database.execute("SELECT name FROM bundles WHERE folder = ?", (job.id,)).fetchone()
    if stray.result is not None:
        status, result, finished = "done", stray.result.name, _ended(stray.result)
        summary = summary_of(_read_result(stray.result) or [])
        confirm(stray.result)
    elif made is not None:
        status, finished, summary = "done", time.time(), {"bundle": made["name"]}
    attempt = max(map(_attempt, stray.folder.iterdir()), default=0)
    known = database.execute("SELECT 1 FROM jobs WHERE client_key = ?", (job.client_key,))
    database.execute(
        _INSERT,
        (
            *(job.id, job.kind, LANES[job.kind], status, job.bundle, json.dumps(job.options)),
            *(json.dumps(job.names), job.images, attempt, job.created, finished, result),
            *(json.dumps(summary), None if known.fetchone() else job.client_key),
        ),
    )


def _ended(result: Path) -> float:
    return (result / RESULT).stat().st_mtime


def _set_aside(root: Path, path: Path) -> None:
    """Move a file or folder below lost/, to where it was below the data folder."""
    lost = root / "lost" / time.strftime("%Y%m%d-%H%M%S") / path.relative_to(root)
    lost.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.rename(lost)
    sync(lost.parent)
    sync(path.parent)
