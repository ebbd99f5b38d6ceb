"""A disk without room: uploads are refused, and what was accepted waits for room."""

import errno
import sqlite3
import time
from types import SimpleNamespace

import numpy as np
import pytest

from recap._process import Retries
from recap.errors import InputError, TrainingError
from recap.methods.registry import resolve_settings
from recap.progress import silent
from recap.service import deidentify, inspector, results, work, workers
from recap.service.inspector import NO_ROOM_TEXT
from recap.service.jobs import Jobs
from recap.service.metrics import Metrics
from recap.service.settings import ServerSettings
from service_calls import API, add_job, ended, png, upload, zipped


def no_room(*arguments, **named):
    raise OSError(errno.ENOSPC, "No space left on device")


def no_room_in_words(*arguments, **named):
    """As `recap._files.replacing` tells it."""
    try:
        no_room()
    except OSError as error:
        raise InputError("Cannot write /srv/recap/work: the disk is full.") from error


def no_room_for_rows(*arguments, **named):
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise error


@pytest.mark.parametrize("fail", [no_room, no_room_in_words, no_room_for_rows])
def test_an_accepted_job_waits_for_room(client, monkeypatch, fail):
    write, full = work.write_case, [True, True]
    monkeypatch.setattr(client.app.state.service.jobs, "no_room", Retries(0.01))

    def write_if_there_is_room(*arguments):
        return fail() if full and full.pop() else write(*arguments)

    monkeypatch.setattr(work, "write_case", write_if_there_is_room)
    job = ended(client, upload(client, png()))
    assert (job["status"], job["error"], full) == ("done", "", [])
    (case,) = client.get(f"{API}/jobs/{job['id']}/cases").json()
    assert case["status"] == "ok"
    assert client.app.state.service.jobs.get(job["id"]).attempt == 1


def test_a_job_without_room_holds_up_no_other_and_says_what_it_waits_for(client, monkeypatch):
    write, large, tries = work.write_case, [], []
    monkeypatch.setattr(client.app.state.service.jobs, "no_room", Retries(30))

    def write_what_is_small(folder, case, prediction):
        large.append(folder.parents[2].name)
        if large[-1] == large[0]:
            tries.append(folder)
            no_room()
        return write(folder, case, prediction)

    monkeypatch.setattr(work, "write_case", write_what_is_small)
    first = upload(client, png(1)).json()["id"]
    assert ended(client, upload(client, png(2)), seconds=25)["status"] == "done"
    waiting = client.get(f"{API}/jobs/{first}").json()
    assert (waiting["status"], waiting["progress"]["stage"]) == ("queued", "no room")
    assert len(tries) == 1


def test_jobs_that_wait_for_room_are_not_claimed(store):
    jobs = Jobs(store, 10)
    first, second, third = (add_job(jobs) for _ in range(3))
    (given_back,) = jobs.claim("score")
    jobs.no_room.postpone(first)
    jobs.release(given_back)
    assert [job.id for job in jobs.claim("score")] == [second]
    jobs.no_room.postpone(third)
    fourth, fifth = add_job(jobs), add_job(jobs)
    assert [job.id for job in jobs.claim("score", 9)] == [fourth, fifth]
    assert jobs.claim("score") == []
    jobs.no_room.forget(first)
    assert [job.id for job in jobs.claim("score")] == [first]


def test_a_job_that_has_ended_waits_for_no_room(store):
    jobs = Jobs(store, 10)
    ends = [
        lambda job: jobs.finish(job, "", lambda database: {}),
        lambda job: jobs.fail(job, "no"),
        lambda job: jobs.cancel(job.id),
    ]
    for end in ends:
        add_job(jobs)
        (job,) = jobs.claim("score")
        jobs.no_room.postpone(job.id)
        end(job)
    assert jobs.no_room.waiting() == []


def wait_until(is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def test_a_job_that_waits_for_room_can_be_cancelled_and_takes_none(
    client, monkeypatch, volume, tmp_path
):
    monkeypatch.setattr(work, "write_case", no_room)
    job = upload(client, ("scan.nii", volume)).json()["id"]
    folder = tmp_path / "data" / "jobs" / job
    wait_until(lambda: client.get(f"{API}/jobs/{job}").json()["progress"]["stage"] == "no room")
    assert names_in(folder) == {"job.json", "upload", "work"}  # the slices that are scored
    assert client.app.state.service.jobs._watched == {}
    client.delete(f"{API}/jobs/{job}")
    assert client.get(f"{API}/jobs/{job}").json()["status"] == "cancelled"
    assert names_in(folder) == {"job.json", "upload"}


def test_a_job_that_is_cancelled_as_it_finds_no_room_takes_none(
    client, monkeypatch, volume, tmp_path
):
    jobs = client.app.state.service.jobs
    monkeypatch.setattr(work, "write_case", no_room)
    monkeypatch.setattr(jobs.no_room, "postpone", jobs.cancel)
    job = upload(client, ("scan.nii", volume)).json()["id"]
    wait_until(lambda: jobs.get(job).status == "cancelled" and not jobs._watched)
    wait_until(lambda: names_in(tmp_path / "data" / "jobs" / job) == {"job.json", "upload"})
    assert jobs.no_room.waiting() == []


def test_a_job_that_is_cancelled_as_the_service_stops_takes_no_room(store, monkeypatch):
    jobs = Jobs(store, 10)
    work = store.job_folder(add_job(jobs)) / "work"
    work.mkdir()
    settings = ServerSettings(bundles=(), data=store.root)
    worker = workers.Workers(settings, jobs, None, Metrics())

    def stop(job, ready):
        jobs.cancel(job.id)
        raise workers.StoppedError

    monkeypatch.setattr(worker, "_run_one", stop)
    worker._run(jobs.claim("score"))
    assert not work.exists()


def test_a_restart_keeps_work_only_of_what_goes_on(store):
    jobs = Jobs(store, 10)
    failed, running, queued = (add_job(jobs) for _ in range(3))
    for job in (failed, running, queued):
        (store.job_folder(job) / "work").mkdir()
    jobs.fail(jobs.claim("score")[0], "no")
    jobs.claim("score")
    store.sweep()
    kept = [job for job in (failed, running, queued) if (store.job_folder(job) / "work").exists()]
    assert kept == [running, queued]


def test_a_fit_without_room_is_not_taken_for_a_damaged_one(monkeypatch, tmp_path):
    """All that it has encoded would be thrown away, and encoded again, at each try."""
    (tmp_path / "upload" / "normals").mkdir(parents=True)
    (tmp_path / "upload" / "normals" / "000000.png").write_bytes(png())
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "tokens.f32").touch()
    tries = []

    def fit_support(*arguments, **named):
        tries.append(named["work_dir"])
        try:
            no_room()
        except OSError as error:
            raise TrainingError("work/tokens.f32 needs 8.0 GB for encoded images.") from error

    monkeypatch.setattr("recap.scoring.fit.fit_support", fit_support)
    settings = resolve_settings().model_dump(mode="json")
    job = SimpleNamespace(options={"settings": settings, "keep_thumbnails": False})
    with pytest.raises(TrainingError, match="needs"):
        work.run_fit(job, tmp_path, tmp_path / "out", "cpu", silent)
    assert tries == [tmp_path / "work"]
    assert names_in(tmp_path / "work") == {"tokens.f32"}


def test_arrays_are_written_without_a_mapping(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), np.uint8)
    results._save(tmp_path / "a.npy", pixels.shape, np.uint8, iter(pixels))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy", mmap_mode="r"), pixels)
    with pytest.raises(ValueError, match="a block of"):
        results._save(tmp_path / "b.npy", (2, 4, 5), np.uint8, pixels)


def test_a_file_without_room_to_clean_it_is_not_taken_for_a_damaged_one(tmp_path, monkeypatch):
    """A series would be scored without that slice."""
    (tmp_path / "000000.png").write_bytes(png())
    monkeypatch.setattr(deidentify, "_clean_picture", no_room)
    with pytest.raises(OSError, match="No space"):
        deidentify.deidentify_all(tmp_path)
    assert (tmp_path / "000000.png").exists()


def test_an_archive_that_there_is_no_room_for_is_told_so(tmp_path, monkeypatch):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "000000").write_bytes(zipped({"a.png": png()}))
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Disk", (), {"free": 10}))
    request = {
        "task": "score",
        "folder": str(tmp_path),
        "files": [("000000", "a.zip")],
        "reading": {},
        "max_files": 9,
        "max_unpacked": 10**9,
        "max_pixels": 10**9,
        "deidentify": False,
    }
    assert inspector.answer(request) == {"code": "no_room", "detail": NO_ROOM_TEXT}
