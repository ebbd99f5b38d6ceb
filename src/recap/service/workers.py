"""The threads that do the work: some score, one fits. Each takes the next job of its lane."""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from recap.errors import RecapError, is_full, log_failure
from recap.service.bundles import Bundles, add_bundle, free_name, retired_by
from recap.service.jobs import Job, Jobs
from recap.service.metrics import Metrics
from recap.service.placing import in_client_words
from recap.service.settings import ServerSettings
from recap.service.store import confirm, remove

_IDLE_SECONDS = 1.0
_CLEAN_EVERY_SECONDS = 600.0
_DAY_SECONDS = 86400.0
_log = logging.getLogger("recap.service")


class StoppedError(Exception):
    """The service is being stopped: the job goes back into the queue."""


class CancelledError(Exception):
    """Nobody wants the job any more."""


class Workers:
    """Starts and stops the threads."""

    def __init__(
        self, settings: ServerSettings, jobs: Jobs, bundles: Bundles, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._bundles = bundles
        self._metrics = metrics
        self._stopping = threading.Event()
        lanes = ["score"] * settings.workers + ["fit"]
        targets: list[Callable[[], None]] = [partial(self._work, lane) for lane in lanes]
        targets.append(self._clean)
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float = 20.0) -> None:
        """Let every thread come to a good end; what is unfinished goes on after the next start."""
        self._stopping.set()
        with self._jobs.arrived:
            self._jobs.arrived.notify_all()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def are_alive(self) -> bool:
        """Tell if all threads still run."""
        return all(thread.is_alive() for thread in self._threads)

    def _work(self, lane: str) -> None:
        dropped: list[Job] = []
        while not self._stopping.is_set():
            claimed: list[Job] = []
            try:
                self._give_back(dropped)
                claimed = self._jobs.claim(lane, self._together(lane))
                if claimed:
                    self._run(claimed)
                    continue
            # A full disk or the like must not end the thread; after it, work goes on, also on
            # jobs whose end could not be noted.
            except Exception as error:
                log_failure(_log, error, f"{lane} worker")
                dropped += claimed
                # At once if that can be noted: else a stop while it waits would cost an attempt.
                with suppress(sqlite3.Error, OSError):
                    self._give_back(dropped)
                self._stopping.wait(_IDLE_SECONDS)
            with self._jobs.arrived:
                if not self._stopping.is_set():
                    self._jobs.arrived.wait(_IDLE_SECONDS)

    def _give_back(self, dropped: list[Job]) -> None:
        while dropped:
            # Before it is given back: from then on another worker may have it, and watch it.
            self._jobs.unwatch(dropped[-1].id)
            given_back = self._jobs.release(dropped[-1])
            job = dropped.pop()
            if not given_back:
                self._tidy(job)

    def _together(self, lane: str) -> int:
        """Choose how many single images to score at once: a CPU gains nothing by it."""
        from recap.methods.training import choose_device

        on_cpu = choose_device(self._settings.device).type == "cpu"
        return 1 if on_cpu or lane != "score" else self._settings.batch_size

    def _run(self, claimed: list[Job]) -> None:
        ready = self._score_together(claimed) if len(claimed) > 1 else {}
        for job in claimed:
            started = time.perf_counter()
            try:
                status = self._run_one(job, ready.get(job.id, []))
            except StoppedError:
                status = "released" if self._jobs.release(job) else "cancelled"
            except CancelledError:
                status = "cancelled"
            except Exception as error:
                status = self._explain(job, error)
            seconds = time.perf_counter() - started
            self._jobs.unwatch(job.id)
            if status != "released":
                self._tidy(job)
                done = job.images if status == "done" and job.kind == "score" else 0
                self._metrics.job(job.kind, status, seconds, done)
            _log.info("job %s %s %s %.2f s", job.id, job.kind, status, seconds)

    def _explain(self, job: Job, error: Exception) -> str:
        if self._jobs.watch(job.id).cancelled.is_set():
            return "cancelled"  # and deleted: its files went away under the work
        folder = self._jobs.store.job_folder(job.id)
        full = is_full(error) or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        if full:  # it waits, and what it wrote so far takes no room meanwhile
            remove(folder / f"working-{job.attempt}")
            self._jobs.no_room.postpone(job.id)
            raise error
        if isinstance(error, RecapError):
            hide = self._settings.deidentify
            reason = in_client_words(str(error), folder / "upload", job.names, hide)
        else:
            log_failure(_log, error, f"job {job.id}")
            reason = f"The service made a mistake ({type(error).__name__})."
        self._jobs.fail(job, reason)
        return "failed"

    def _run_one(self, job: Job, ready: list[Any]) -> str:
        work = {"score": self._score, "fit": self._fit, "calibrate": self._calibrate}
        finished = work[job.kind](job, ready)
        return "done" if finished else "cancelled"

    def _score_together(self, claimed: list[Job]) -> dict[str, list[Any]]:
        """Single images of several jobs through the encoder in one batch; none if one is bad."""
        from recap.service.placing import job_cases

        try:
            detector = self._bundles.detector(claimed[0].bundle)
            images = []
            for job in claimed:
                cases = job_cases(job, self._jobs.store.job_folder(job.id) / "upload")
                found = next(iter(cases.values()))
                images.append(found.open(detector.card.reading).images[0])
            predictions = list(detector.score_batch(images, len(images)))
        except RecapError:
            return {}  # one by one, the bad one tells what is wrong
        except Exception as error:  # such as too little memory for so many at a time
            log_failure(_log, error, f"{len(claimed)} jobs together")
            return {}
        pairs = zip(claimed, predictions, strict=True)
        return {job.id: [prediction] for job, prediction in pairs}

    def _score(self, job: Job, ready: list[Any]) -> bool:
        from recap.service.work import score_job

        folder = self._jobs.store.job_folder(job.id)
        working = self._new_folder(folder / f"working-{job.attempt}")
        detector = self._detector(job)

        def count(done: int) -> None:
            self._note(job, "score", done, job.images, "")

        count(0)
        summary = score_job(job, detector, folder, working, count, ready)
        result = f"result-{job.attempt}"
        self._jobs.store.place(working, folder / result)
        return self._jobs.finish(job, result, lambda database: summary)

    def _fit(self, job: Job, _: list[Any]) -> bool:
        from recap.service.work import run_fit

        folder = self._jobs.store.job_folder(job.id)
        working = self._new_folder(folder / f"working-{job.attempt}")
        bundle = working / "bundle"
        self._note(job, "encode", 0, job.images, "")
        run_fit(job, folder, bundle, self._settings.device, partial(self._note, job))
        return self._add_bundle(job, bundle, job.options["name"])

    def _calibrate(self, job: Job, _: list[Any]) -> bool:
        from recap.service.work import run_calibration

        folder = self._jobs.store.job_folder(job.id)
        working = self._new_folder(folder / f"working-{job.attempt}")
        detector = self._detector(job)
        source = self._bundles.folders()[job.bundle]
        bundle = working / "bundle"
        run_calibration(job, detector, source, folder, bundle, partial(self._note, job))
        served = not self._bundles.is_made_here(job.bundle)
        replaces = detector.card.fingerprint if served else ""
        return self._add_bundle(job, bundle, job.bundle, replaces, replace=True)

    def _add_bundle(
        self, job: Job, bundle: Path, name: str, replaces: str = "", replace: bool = False
    ) -> bool:
        """Move a bundle to its place, and make it known in the moment in which its job is done."""
        store = self._jobs.store
        target = store.bundle_folder(job.id)
        store.place(bundle, target)
        taken = set(self._bundles.folders())
        before: list[Path] = []

        def add(database: sqlite3.Connection) -> dict[str, Any]:
            free = name if replace else free_name(database, name, taken)
            before[:] = retired_by(store, database, free)
            add_bundle(store, database, free, job.id, replaces)
            return {"bundle": free}

        finished = self._jobs.finish(job, "", add)
        if finished:
            confirm(target)
        for folder in before if finished else [target]:
            store.discard(folder)
        return finished

    def _detector(self, job: Job) -> Any:
        if self._bundles.bundle(job.bundle) is None:
            raise RecapError(f"The bundle '{job.bundle}' is not served any more.")
        return self._bundles.detector(job.bundle)

    def _note(self, job: Job, stage: str, done: int, total: int, detail: str) -> None:
        """Keep progress for those who ask, and stop here if the work is to stop."""
        watch = self._jobs.watch(job.id)
        watch.stage, watch.done, watch.total = stage, done, total
        if watch.cancelled.is_set():
            raise CancelledError
        if self._stopping.is_set():
            raise StoppedError

    def _new_folder(self, folder: Path) -> Path:
        remove(folder)
        folder.mkdir(parents=True)
        return folder

    def _tidy(self, job: Job) -> None:
        """Remove all that the work on a job left, but its result; all of a job that was deleted."""
        store = self._jobs.store
        if now := self._jobs.get(job.id):
            store.tidy(now.id, now.status, now.result)
        else:
            store.discard(store.job_folder(job.id))

    def _clean(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._settings.keep_days is not None:
                    self._jobs.expire(time.time() - self._settings.keep_days * _DAY_SECONDS)
            # On a full disk above all, this is what makes room again.
            except Exception as error:
                log_failure(_log, error, "deleting old jobs")
            self._stopping.wait(_CLEAN_EVERY_SECONDS)
