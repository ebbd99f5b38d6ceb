"""Jobs and bundles in SQLite, files in folders beside it: the only place that knows the layout.

    DATA/recap.sqlite3        every job and every bundle that was made here
    DATA/secret               what digests of clients' keys are made with
    DATA/incoming/ID/         an upload that has not been accepted yet
    DATA/jobs/ID/upload/      the files of an accepted job, under names of ours
    DATA/jobs/ID/work         what is done of a job that has not ended
    DATA/jobs/ID/result-N/    the result of attempt N
    DATA/bundles/ID/          a bundle that job ID made

A job counts from the moment its row is committed; its files are on the disk before. Whatever no
row points at is left over from a kill and is removed at the next start.
"""

import fcntl
import hmac
import os
import secrets
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from recap.atomic import replacing, sync
from recap.errors import InputError

ID_PATTERN = r"^[0-9a-f]{32}$"
DATABASE, LOCK, SECRET = "recap.sqlite3", "lock", "secret"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    lane TEXT NOT NULL,
    status TEXT NOT NULL,
    bundle TEXT NOT NULL,
    options TEXT NOT NULL,
    names TEXT NOT NULL,
    images INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    started REAL,
    finished REAL,
    error TEXT NOT NULL DEFAULT '',
    result TEXT NOT NULL DEFAULT '',
    summary TEXT NOT NULL DEFAULT '{}',
    client_key TEXT UNIQUE
);
CREATE INDEX IF NOT EXISTS jobs_by_status ON jobs (status, lane, number);
CREATE TABLE IF NOT EXISTS bundles (
    name TEXT PRIMARY KEY,
    folder TEXT NOT NULL,
    replaces TEXT NOT NULL,
    created REAL NOT NULL
);
"""


def new_id() -> str:
    """A name that nobody can guess, for a job and its folder."""
    return secrets.token_hex(16)


class Store:
    """The data folder, held by one process at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        # What lies here shows patients, also in a folder that was there; a mounted one of another
        # owner is as that owner has set it.
        with suppress(PermissionError):
            self.root.chmod(0o700)
        for folder in ("incoming", "jobs", "bundles"):
            (self.root / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock_file = _hold(self.root / LOCK)
        self._secret = _made_once(self.root / SECRET)
        self._guard = threading.RLock()
        self._connection = _connect(self.root / DATABASE)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, on the disk when it ends; one at a time."""
        with self._guard:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.rollback()
                raise
            self._connection.commit()

    def rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        """What a query finds."""
        with self._guard:
            return self._connection.execute(query, values).fetchall()

    def close(self) -> None:
        """Let go of the folder."""
        with self._guard:
            self._connection.close()
        self._lock_file.close()

    def digest(self, text: str) -> str:
        """A digest under this folder's secret: without it, no short text is found by trying."""
        return hmac.digest(self._secret, text.encode(), "sha256").hex()

    def incoming(self, job: str) -> Path:
        """Where an upload is collected."""
        return self.root / "incoming" / job

    def job_folder(self, job: str) -> Path:
        """Where an accepted job lives."""
        return self.root / "jobs" / job

    def bundle_folder(self, job: str) -> Path:
        """Where the bundle that a job makes goes."""
        return self.root / "bundles" / job

    def sweep(self) -> None:
        """Remove what no row points at."""
        _remove_all(self.root / "incoming", keep=set())
        jobs = self.rows("SELECT id, status, result FROM jobs")
        _remove_all(self.root / "jobs", keep={row["id"] for row in jobs})
        for row in jobs:
            goes_on = row["status"] in ("queued", "running")
            if (folder := self.job_folder(row["id"])).is_dir():
                _remove_all(folder, keep={"upload", "work" if goes_on else row["result"]})
        kept = {row["folder"] for row in self.rows("SELECT folder FROM bundles")}
        _remove_all(self.root / "bundles", keep=kept)


def sync_tree(folder: Path) -> None:
    """Put a folder and all that is in it on the disk."""
    for parent, _, files in os.walk(folder):
        for name in files:
            sync(Path(parent) / name)
        sync(Path(parent))


def move_into_place(source: Path, target: Path) -> None:
    """Give a whole folder its name, on the disk before and after."""
    sync_tree(source)
    source.rename(target)
    sync(target.parent)
    if source.parent != target.parent:
        sync(source.parent)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk when it returns
    connection.executescript(_SCHEMA)
    return connection


def _hold(path: Path) -> IO[bytes]:
    """The system lets go of the lock when the process ends, however it ends."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise InputError(
            f"{path.parent} is in use by another `recap serve`. Choose another --data."
        ) from error
    return file


def _made_once(path: Path) -> bytes:
    """Random bytes, for the owner of the folder alone."""
    if not path.exists():
        with replacing(path, durable=True) as file:
            with suppress(PermissionError):  # on disks without modes, as for the folder
                os.fchmod(file.fileno(), 0o600)
            file.write(secrets.token_bytes(32))
    return path.read_bytes()


def _remove_all(folder: Path, keep: set[str]) -> None:
    for entry in folder.iterdir():
        if entry.name not in keep:
            remove(entry)


def remove(path: Path) -> None:
    """Delete a folder or a file, whatever is left of it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
