"""The life of a job: queued, running, then done, failed or cancelled, each step one transaction."""

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from recap._process import Retries
from recap.service.store import Store, confirm, mark, remove

Kind = Literal["score", "fit", "calibrate"]
Status = Literal["queued", "running", "done", "failed", "cancelled"]
STATUSES: tuple[Status, ...] = ("queued", "running", "done", "failed", "cancelled")
# Long work has a lane of its own, so that nobody waits for a fit to have an image scored.
LANES: dict[Kind, str] = {"score": "score", "fit": "fit", "calibrate": "fit"}
MOST_ATTEMPTS = 5
"""A job that ended the whole process this often is not tried again."""
RECORD = "job.json"
"""The file of all that a row was made of, beside the files of its job."""
_NO_ROOM_SECONDS = 10.0
Summarise = Callable[[sqlite3.Connection], dict[str, Any]]
"""The summary of a result, made inside the transaction that makes it the result."""


class QueueFullError(Exception):
    """As many jobs wait as may."""


@dataclass(frozen=True)
class Job:
    """One row: what was asked for, and how far it is."""

    id: str
    kind: Kind
    status: Status
    bundle: str
    options: dict[str, Any]
    names: dict[str, str]
    """The client's names of files, by their names here; shown, never used."""
    images: int
    attempt: int
    created: float
    started: float | None
    finished: float | None
    error: str
    result: str
    """The folder of the result inside the job's own; empty until it is done."""
    summary: dict[str, Any]


@dataclass(frozen=True)
class NewJob:
    """A job that was uploaded and checked but not accepted yet."""

    id: str
    kind: Kind
    bundle: str
    options: dict[str, Any]
    names: dict[str, str]
    images: int
    client_key: str | None = None
    created: float = 0.0


@dataclass
class Watch:
    """A running job's progress, and if it is to be cancelled: not worth a write."""

    done: int = 0
    total: int = 0
    stage: str = "queued"
    cancelled: threading.Event = field(default_factory=threading.Event)


class Jobs:
    """All jobs. Methods may be called from any thread."""

    def __init__(self, store: Store, limit: int) -> None:
        self.store = store
        self.limit = limit
        self.arrived = threading.Condition()
        self.no_room = Retries(_NO_ROOM_SECONDS)
        """Ids of jobs that found the disk full: each waits on its own, and holds up no other."""
        self._watched: dict[str, Watch] = {}

    def recover(self) -> int:
        """After a start: what was running goes back to its place in the queue."""
        with self.store.transaction() as database:
            database.execute(
                "UPDATE jobs SET status = 'failed', finished = ?, error = ? "
                "WHERE status = 'running' AND attempt >= ?",
                (time.time(), _POISON, MOST_ATTEMPTS),
            )
            found = database.execute("UPDATE jobs SET status = 'queued' WHERE status = 'running'")
            return found.rowcount

    def accept(self, new: NewJob) -> str:
        """Take on a job whose files wait in its incoming folder; returns the job's id.

        When this returns, the job survives anything. A client key that was used before gives the
        job of that time.
        """
        if new.client_key and (before := self.by_key(new.client_key)):
            remove(self.store.incoming(new.id))
            return before
        self.refuse_if_full()
        # Clients make keys of file names and patients' numbers, which are not stored.
        key = self.store.digest(new.client_key) if new.client_key else None
        new = replace(new, client_key=key, created=time.time())
        folder = self.store.job_folder(new.id)
        record = self.store.incoming(new.id) / RECORD
        record.write_text(json.dumps(asdict(new)), encoding="utf-8")
        self.store.place(self.store.incoming(new.id), folder)
        try:
            self._insert(new)
        except sqlite3.IntegrityError:
            self.store.discard(folder)
            found = self.store.rows("SELECT id FROM jobs WHERE client_key = ?", key)
            if not found:
                raise
            return str(found[0]["id"])
        except BaseException:
            self.store.discard(folder)
            raise
        confirm(folder)
        with self.arrived:
            self.arrived.notify_all()
        return new.id

    def waiting(self) -> int:
        """Count the jobs that wait for a worker."""
        return int(self.store.rows("SELECT count(*) FROM jobs WHERE status = 'queued'")[0][0])

    def counts(self) -> dict[str, int]:
        """Count the jobs in each state."""
        found = self.store.rows("SELECT status, count(*) FROM jobs GROUP BY status")
        return dict.fromkeys(STATUSES, 0) | {row[0]: row[1] for row in found}

    def get(self, job: str) -> Job | None:
        """Find a job by its id."""
        found = self.store.rows("SELECT * FROM jobs WHERE id = ?", job)
        return _job(found[0]) if found else None

    def latest(self, limit: int, before: str | None = None) -> list[Job]:
        """List the newest jobs first, or the newest of those that came before one of them."""
        earlier = "WHERE number < (SELECT number FROM jobs WHERE id = ?)" if before else ""
        query = f"SELECT * FROM jobs {earlier} ORDER BY number DESC LIMIT ?"
        found = self.store.rows(query, *([before] if before else []), limit)
        return [_job(row) for row in found]

    def watch(self, job: str) -> Watch:
        """Tell the progress of a job as it is now."""
        return self._watched.get(job, Watch())

    def unwatch(self, job: str) -> None:
        """Nobody works on a job any more."""
        self._watched.pop(job, None)

    def claim(self, lane: str, most: int = 1) -> list[Job]:
        """Start the next job of a lane; with `most`, further single images of its bundle too."""
        passed_over = json.dumps(self.no_room.waiting())
        with self.store.transaction() as database:
            first = database.execute(_NEXT, (lane, passed_over)).fetchone()
            if first is None:
                return []
            chosen = [first]
            if most > 1 and first["images"] == 1:
                same = (lane, passed_over, first["bundle"], first["id"], most - 1)
                chosen += database.execute(_SAME, same)
            now = time.time()
            for row in chosen:
                database.execute(_START, (now, row["id"]))
        started = [
            replace(job, status="running", attempt=job.attempt + 1, started=now)
            for job in map(_job, chosen)
        ]
        for job in started:
            self._watched[job.id] = Watch(total=job.images, stage="start")
        return started

    def release(self, job: Job) -> bool:
        """Give a job back unfinished; false if it has ended meanwhile."""
        with self.store.transaction() as database:
            found = database.execute(
                "UPDATE jobs SET status = 'queued', attempt = attempt - 1 "
                "WHERE id = ? AND status = 'running' AND attempt = ?",
                (job.id, job.attempt),
            )
        if not found.rowcount:  # it may have been postponed after it was cancelled
            self.no_room.forget(job.id)
        return bool(found.rowcount)

    def finish(self, job: Job, result: str, summarise: Summarise) -> bool:
        """Point at a whole result; false if the job was cancelled meanwhile.

        `summarise` may write what must become true in the same moment.
        """
        with self.store.transaction() as database:
            found = database.execute(
                "UPDATE jobs SET status = 'done', finished = ?, result = ? "
                "WHERE id = ? AND status = 'running' AND attempt = ?",
                (time.time(), result, job.id, job.attempt),
            )
            if found.rowcount:
                summary = json.dumps(summarise(database))
                database.execute("UPDATE jobs SET summary = ? WHERE id = ?", (summary, job.id))
        self.no_room.forget(job.id)
        return bool(found.rowcount)

    def fail(self, job: Job, reason: str) -> None:
        """End a job without a result."""
        with self.store.transaction() as database:
            database.execute(
                "UPDATE jobs SET status = 'failed', finished = ?, error = ? "
                "WHERE id = ? AND status = 'running' AND attempt = ?",
                (time.time(), reason, job.id, job.attempt),
            )
        self.no_room.forget(job.id)

    def cancel(self, job: str) -> bool:
        """Stop a job that waits or runs; false if it has ended already."""
        with self.store.transaction() as database:
            before = database.execute("SELECT status FROM jobs WHERE id = ?", (job,)).fetchone()
            found = database.execute(
                "UPDATE jobs SET status = 'cancelled', finished = ? "
                "WHERE id = ? AND status IN ('queued', 'running')",
                (time.time(), job),
            )
        if watch := self._watched.get(job):
            watch.cancelled.set()
        self.no_room.forget(job)
        if found.rowcount and before["status"] == "queued":  # no worker is there to tidy up
            remove(self.store.job_folder(job) / "work")
        return bool(found.rowcount)

    def delete(self, job: str) -> None:
        """Forget a job that has ended, and its files."""
        ended = "status IN ('done', 'failed', 'cancelled')"
        folder = self.store.job_folder(job)
        if not self.store.rows(f"SELECT id FROM jobs WHERE id = ? AND {ended}", job):
            return
        with suppress(OSError):  # without room for the mark, this is what makes room
            mark(folder)
        with self.store.transaction() as database:
            database.execute("DELETE FROM jobs WHERE id = ?", (job,))
        if job not in self._watched:  # else its worker would make the folder anew
            self.store.discard(folder)

    def expire(self, before: float) -> int:
        """Forget all jobs that ended before a time."""
        old = self.store.rows("SELECT id FROM jobs WHERE finished < ?", before)
        for row in old:
            self.delete(row["id"])
        return len(old)

    def result_folder(self, job: Job) -> Path:
        """Name the folder of a finished job's result."""
        return self.store.job_folder(job.id) / job.result

    def refuse_if_full(self) -> None:
        """Say no before anything is read."""
        if self.waiting() >= self.limit:
            raise QueueFullError

    def _insert(self, new: NewJob) -> None:
        told = (json.dumps(new.options), json.dumps(new.names), new.images)
        values = (new.id, new.kind, LANES[new.kind], new.bundle, *told, new.created, new.client_key)
        with self.store.transaction() as database:
            inserted = database.execute(_INSERT, (*values, self.limit))
        if not inserted.rowcount:
            raise QueueFullError

    def by_key(self, key: str) -> str | None:
        """Find the job that a client's key was used for."""
        query = "SELECT id FROM jobs WHERE client_key = ?"
        found = self.store.rows(query, self.store.digest(key))
        return found[0]["id"] if found else None


_POISON = (
    f"The service ended {MOST_ATTEMPTS} times while it was working on this job, so it is not tried "
    "again. Check the files, or the memory of the machine."
)
_CLAIMABLE = (
    "SELECT * FROM jobs WHERE status = 'queued' AND lane = ? "
    "AND id NOT IN (SELECT value FROM json_each(?)) "
)
_NEXT = f"{_CLAIMABLE} ORDER BY number LIMIT 1"
_SAME = f"{_CLAIMABLE} AND bundle = ? AND id != ? AND images = 1 ORDER BY number LIMIT ?"
_START = "UPDATE jobs SET status = 'running', attempt = attempt + 1, started = ? WHERE id = ?"
# The count and the row in one step: two uploads never take the same last place.
_INSERT = (
    "INSERT INTO jobs (id, kind, lane, status, bundle, options, names, images, created, client_key)"
    " SELECT ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?"
    " WHERE (SELECT count(*) FROM jobs WHERE status = 'queued') < ?"
)


def _job(row: sqlite3.Row) -> Job:
    fields = {name: row[name] for name in Job.__dataclass_fields__}
    for name in ("options", "names", "summary"):
        fields[name] = json.loads(fields[name])
    return Job(**fields)
