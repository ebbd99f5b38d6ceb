"""Jobs and bundles in SQLite, files in folders beside it: the only place that knows the layout.

    DATA/recap.sqlite3        every job and every bundle that was made here
    DATA/secret               what digests of clients' keys are made with
    DATA/incoming/ID/         an upload that has not been accepted yet, or what was told to go
    DATA/jobs/ID/job.json     what the job's row was made of, should the row be lost
    DATA/jobs/ID/upload/      the files of an accepted job, under names of ours
    DATA/jobs/ID/work         what is done of a job that has not ended
    DATA/jobs/ID/working-N/   the result of attempt N while it is being made
    DATA/jobs/ID/result-N/    the result of attempt N
    DATA/bundles/ID/          a bundle that job ID made; ID.json has its name
    DATA/lost/TIME/           what `recap recover` could make nothing of

A job counts from the moment its row is committed; its files are on the disk before, and bear the
mark `unfinished` until after. So a start after a kill removes what is marked and has no row: nobody
was told of it. A folder that has neither row nor mark is an alarm, because then the database is not
the one that these folders were made with: the service does not start, and nothing is removed.
"""

import hmac
import os
import re
import secrets
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from shlex import quote

from recap._files import locked, replacing, sync
from recap.errors import InputError, counted, some

ID_PATTERN = r"^[0-9a-f]{32}$"
DATABASE, LOCK, SECRET = "recap.sqlite3", "lock", "secret"
INCOMING, JOBS, BUNDLES = "incoming", "jobs", "bundles"
UNFINISHED = "unfinished"
"""A mark in a folder that is in its place, but that no client was told of."""
_RESULT = re.compile(r"result-\d+")
_OF_ATTEMPTS = re.compile(r"work|working-\d+|result-\d+")
_GOES_ON = ("queued", "running")
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

_COLUMNS = (
    "number, id, kind, lane, status, bundle, options, names, images, attempt, jobs.created, "
    "started, finished, error, result, summary, client_key, name, folder, replaces"
)
_DAMAGE = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def new_id() -> str:
    """Make a name that nobody can guess, for a job and its folder."""
    return secrets.token_hex(16)


class DamagedDatabaseError(InputError, code="database"):
    """The database is not one, or not whole, or not of this service."""


class Store:
    """The data folder, held by one process at a time.

    Args:
        root: The folder; made if it is not there.
        allow_unknown: Open it although it has folders that the database does not know.
    """

    def __init__(self, root: Path, allow_unknown: bool = False) -> None:
        self.root = root.resolve()
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        # What lies here shows patients, also in a folder that was there; a mounted one of another
        # owner is as that owner has set it.
        with suppress(PermissionError):
            self.root.chmod(0o700)
        for folder in (INCOMING, JOBS, BUNDLES):
            (self.root / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._guard = threading.RLock()
        self._held = ExitStack()
        self._held.enter_context(hold(self.root))
        try:
            self._secret = _made_once(self.root / SECRET)
            self._connection = _connect(self.root / DATABASE)
        except BaseException:
            self._held.close()
            raise
        if not allow_unknown and (unknown := self.unknown()):
            self.close()
            raise InputError(_alarm(self.root, unknown), code="database", path=self.root)

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
        """Run a query."""
        with self._guard:
            return self._connection.execute(query, values).fetchall()

    def close(self) -> None:
        """Let go of the folder."""
        with self._guard:
            self._connection.close()
        self._held.close()

    def digest(self, text: str) -> str:
        """Digest a text under this folder's secret: without it, no short one is found by trying."""
        return hmac.digest(self._secret, text.encode(), "sha256").hex()

    def incoming(self, job: str) -> Path:
        """Name the folder in which an upload is collected."""
        return self.root / INCOMING / job

    def job_folder(self, job: str) -> Path:
        """Name the folder of an accepted job."""
        return self.root / JOBS / job

    def bundle_folder(self, job: str) -> Path:
        """Name the folder of the bundle that a job makes."""
        return self.root / BUNDLES / job

    def bundle_record(self, job: str) -> Path:
        """Name the file that has the name of that bundle, should its row be lost."""
        return self.root / BUNDLES / f"{job}.json"

    def unknown(self) -> list[Path]:
        """Folders that have neither a row nor the mark of something unfinished."""
        results = {row["id"]: row["result"] for row in self.rows("SELECT id, result FROM jobs")}
        bundles = {row["folder"] for row in self.rows("SELECT folder FROM bundles")}
        incoming = _folders(self.root / INCOMING)
        found = [each for each in incoming if not re.fullmatch(ID_PATTERN, each.name)]
        for job in _folders(self.root / JOBS):
            if job.name in results:
                made = [each for each in _folders(job) if _RESULT.fullmatch(each.name)]
                found += [
                    each for each in made if each.name != results[job.name] and not is_marked(each)
                ]
            elif not is_marked(job):
                found.append(job)
        for bundle in _folders(self.root / BUNDLES):
            if bundle.name not in bundles and not is_marked(bundle):
                found.append(bundle)
        return found

    def sweep(self) -> None:
        """Remove what a kill left unfinished, and what was told to go."""
        for upload in _folders(self.root / INCOMING):
            if re.fullmatch(ID_PATTERN, upload.name):
                remove(upload)
        jobs = {row["id"]: row for row in self.rows("SELECT id, status, result FROM jobs")}
        for folder in _folders(self.root / JOBS):
            if row := jobs.get(folder.name):
                confirm(folder)
                self.tidy(row["id"], row["status"], row["result"])
            elif is_marked(folder):
                self.discard(folder)
        known = {row["folder"] for row in self.rows("SELECT folder FROM bundles")}
        for folder in _folders(self.root / BUNDLES):
            if folder.name in known:
                confirm(folder)
            elif is_marked(folder):
                self.discard(folder)

    def tidy(self, job: str, status: str, result: str) -> None:
        """Remove what attempts at a job left, but for its result and for work that goes on."""
        for entry in _folders(self.job_folder(job)):
            if entry.name == result:
                confirm(entry)
            elif _OF_ATTEMPTS.fullmatch(entry.name):
                whole = _RESULT.fullmatch(entry.name) and not is_marked(entry)
                if not whole and not (entry.name == "work" and status in _GOES_ON):
                    self.discard(entry)

    def place(self, source: Path, target: Path) -> None:
        """Give a whole folder its name, marked as unfinished, on the disk before and after."""
        if is_marked(target):  # of this very attempt, if a full disk let nobody note its end
            self.discard(target)
        (source / UNFINISHED).touch()
        sync_tree(source)
        source.rename(target)
        sync(target.parent)
        if source.parent != target.parent:
            sync(source.parent)

    def discard(self, folder: Path) -> None:
        """Delete a folder that was told to go; a kill on the way leaves nothing in its place."""
        going = self.incoming(new_id())
        if folder.parent == self.root / BUNDLES:
            self.bundle_record(folder.name).unlink(missing_ok=True)
        try:
            folder.rename(going)
        except FileNotFoundError:
            return
        sync(folder.parent)
        remove(going)


def is_marked(folder: Path) -> bool:
    """Tell a folder that no client was told of, or that a client wants gone."""
    return (folder / UNFINISHED).is_file()


def mark(folder: Path) -> None:
    """Mark a folder, on the disk when it returns."""
    (folder / UNFINISHED).touch()
    sync(folder)


def confirm(folder: Path) -> None:
    """Take the mark off a folder, once its row is committed."""
    if is_marked(folder):
        with suppress(FileNotFoundError):
            (folder / UNFINISHED).unlink()
            sync(folder)


def sync_tree(folder: Path) -> None:
    """Put a folder and all that is in it on the disk."""
    for parent, _, files in os.walk(folder):
        for name in files:
            sync(Path(parent) / name)
        sync(Path(parent))


def hold(root: Path) -> AbstractContextManager[None]:
    """Keep others from a data folder."""
    busy = InputError(
        f"{root} is in use by another `recap serve`.",
        code="in_use",
        path=root,
        remedy="Choose another --data, or stop it.",
    )
    return locked(root / LOCK, busy)


def _connect(path: Path) -> sqlite3.Connection:
    """Open the database, or make it; refuse one that is damaged before anything relies on it."""
    log = path.with_name(f"{path.name}-wal")
    if _is_empty(path) and not _is_empty(log):  # SQLite would delete the log without a word
        raise DamagedDatabaseError(_damaged(path, "it is empty, but its log is not"))
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk when it returns
        connection.executescript(_SCHEMA)
        connection.execute(f"SELECT {_COLUMNS} FROM jobs, bundles LIMIT 0")
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise DamagedDatabaseError(_damaged(path, str(found)))
    except sqlite3.DatabaseError as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF in _DAMAGE:
            raise DamagedDatabaseError(_damaged(path, str(error))) from error
        raise InputError(
            f"Cannot use {path}: {error}. Check the disk, and who may write there."
        ) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _is_empty(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


def _damaged(path: Path, why: str) -> str:
    return (
        f"{path} is damaged, or no database of this service ({why}). No folder was touched. Put a "
        f"copy of it back, or run {_command(path.parent)} --adopt`: it sets the file aside "
        "and makes a new one from the folders."
    )


def _command(root: Path) -> str:
    return f"`recap recover {quote(str(root))}"


def _alarm(root: Path, unknown: list[Path]) -> str:
    names = some([str(each.relative_to(root)) for each in unknown])
    return (
        f"{root}: the database {DATABASE} does not know {counted(len(unknown), 'folder')} here: "
        f"{names}. It may have been emptied, or be older than they are. No folder was touched. "
        f"Put the right database back, or run {_command(root)}`: it lists them, and with "
        "--adopt makes them jobs and bundles again, with --remove deletes them."
    )


def _folders(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []


def _made_once(path: Path) -> bytes:
    """Read random bytes, made once, for the owner of the folder alone."""
    if not path.exists():
        with replacing(path, durable=True) as file:
            with suppress(PermissionError):  # on disks without modes, as for the folder
                os.fchmod(file.fileno(), 0o600)
            file.write(secrets.token_bytes(32))
    return path.read_bytes()


def remove(path: Path) -> None:
    """Delete a folder or a file, whatever is left of it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
