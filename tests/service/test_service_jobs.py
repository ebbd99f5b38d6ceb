"""The life of jobs: queue, progress, events, cancelling, batches, restarts."""

import json
import sqlite3
import threading
import time
from types import SimpleNamespace

import pytest

from recap.errors import InputError
from recap.service.jobs import MOST_ATTEMPTS, Jobs, NewJob, QueueFullError
from recap.service.settings import ServerSettings
from recap.service.store import Store, mark
from service_calls import API, add_job, ended, png, upload


def test_jobs_are_claimed_in_order_and_once(store):
    jobs = Jobs(store, 10)
    wanted = [add_job(jobs) for _ in range(5)]
    found = [jobs.claim("score")[0].id for _ in range(5)]
    assert found == wanted
    assert jobs.claim("score") == []


def test_no_two_threads_claim_the_same_job(store):
    jobs = Jobs(store, 100)
    wanted = {add_job(jobs) for _ in range(40)}
    found = []

    def work():
        while claimed := jobs.claim("score"):
            found.append(claimed[0].id)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    assert set(found) == wanted


def test_batches_take_single_images_of_one_bundle(store):
    jobs = Jobs(store, 10)
    first = add_job(jobs)
    add_job(jobs, bundle="chest")
    add_job(jobs, images=9)
    second, third = add_job(jobs), add_job(jobs)
    assert [job.id for job in jobs.claim("score", 3)] == [first, second, third]
    assert [job.bundle for job in jobs.claim("score", 3)] == ["chest"]
    assert [job.images for job in jobs.claim("score", 3)] == [9]


def test_fits_have_a_lane_of_their_own(store):
    jobs = Jobs(store, 10)
    fit = add_job(jobs, kind="fit")
    assert jobs.claim("score") == []
    assert jobs.claim("fit")[0].id == fit


def test_the_last_place_in_the_queue_is_taken_once(store):
    jobs = Jobs(store, 3)
    outcomes = []

    def submit():
        try:
            outcomes.append(add_job(jobs))
        except QueueFullError:
            outcomes.append(None)

    threads = [threading.Thread(target=submit) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(outcome is not None for outcome in outcomes) == 3
    kept = {path.name for path in (store.root / "jobs").iterdir()}
    assert kept == {outcome for outcome in outcomes if outcome}


def test_a_result_counts_once_and_not_after_cancelling(store):
    jobs = Jobs(store, 10)
    add_job(jobs)
    (job,) = jobs.claim("score")
    assert jobs.finish(job, "result-1", lambda database: {"count": 1})
    assert not jobs.finish(job, "result-2", lambda database: {"count": 2})
    assert jobs.get(job.id).result == "result-1"
    add_job(jobs)
    (job,) = jobs.claim("score")
    assert jobs.cancel(job.id)
    assert not jobs.finish(job, "result-1", lambda database: {})
    assert jobs.get(job.id).status == "cancelled"


def test_an_old_attempt_cannot_end_a_new_one(store):
    jobs = Jobs(store, 10)
    add_job(jobs)
    (old,) = jobs.claim("score")
    jobs.recover()
    (new,) = jobs.claim("score")
    assert (old.attempt, new.attempt) == (1, 2)
    assert not jobs.finish(old, "result-1", lambda database: {})
    jobs.fail(old, "no")
    assert jobs.get(new.id).status == "running"
    assert jobs.finish(new, "result-2", lambda database: {})


def test_a_job_that_kills_the_service_is_given_up(store):
    jobs = Jobs(store, 10)
    job = add_job(jobs)
    for _ in range(MOST_ATTEMPTS):
        assert jobs.claim("score")
        jobs.recover()
    assert jobs.claim("score") == []
    assert jobs.get(job).status == "failed"


def test_a_job_given_back_has_lost_no_attempt(store):
    jobs = Jobs(store, 10)
    add_job(jobs)
    for _ in range(2 * MOST_ATTEMPTS):
        (job,) = jobs.claim("score")
        jobs.release(job)
    assert job.attempt == 1


def test_sweeping_keeps_what_rows_point_at(store):
    jobs = Jobs(store, 10)
    kept = add_job(jobs)
    (job,) = jobs.claim("score")
    jobs.finish(job, "result-1", lambda database: {})
    for name in ("result-1", "result-2", "working-1", "notes"):
        (store.job_folder(kept) / name).mkdir()
    unfinished = (f"jobs/{kept}/result-2", f"jobs/{'a' * 32}", f"bundles/{'b' * 32}")
    for folder in (f"incoming/{'c' * 32}", *unfinished):
        (store.root / folder).mkdir(exist_ok=True)
    for folder in unfinished:
        mark(store.root / folder)
    store.sweep()
    left = {path.relative_to(store.root).as_posix() for path in store.root.glob("*/**/*")}
    files = {f"jobs/{kept}/{name}" for name in ("job.json", "upload", "result-1", "notes")}
    assert left == {f"jobs/{kept}", *files}


def test_two_services_cannot_share_a_folder(store):
    with pytest.raises(InputError, match="in use by another"):
        Store(store.root)


def test_a_data_folder_that_was_there_is_closed_to_others(tmp_path):
    (tmp_path / "data").mkdir(mode=0o755)
    Store(tmp_path / "data").close()
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_the_queue_is_bounded(make_client):
    client = make_client(queue=2)
    client.app.state.service.jobs.claim = lambda lane, most=1: []
    answers = [upload(client, png(n)) for n in range(4)]
    assert [answer.status_code for answer in answers] == [202, 202, 429, 429]
    assert int(answers[-1].headers["Retry-After"]) >= 1


def test_keys_are_known_but_not_kept(store):
    jobs = Jobs(store, 10)
    now = add_job(jobs, key="MRN-4711")
    (row,) = store.rows("SELECT client_key FROM jobs")
    assert "4711" not in row["client_key"]
    assert (jobs.by_key("MRN-4711"), add_job(jobs, key="MRN-4711")) == (now, now)


def test_events_follow_a_job_to_its_end(client):
    answer = upload(client, png())
    with client.stream("GET", f"{API}/jobs/{answer.json()['id']}/events") as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        told = [json.loads(line[6:]) for line in events.iter_lines() if line.startswith("data: ")]
    assert told[-1]["status"] == "done"
    assert told[-1]["progress"] == {"done": 1, "total": 1, "stage": "done"}


def test_cancelling_a_waiting_job_then_deleting_it(make_client, tmp_path):
    client = make_client()
    client.app.state.service.jobs.claim = lambda lane, most=1: []
    job = upload(client, png()).json()["id"]
    assert client.delete(f"{API}/jobs/{job}").status_code == 204
    assert client.get(f"{API}/jobs/{job}").json()["status"] == "cancelled"
    assert client.delete(f"{API}/jobs/{job}").status_code == 204
    assert client.get(f"{API}/jobs/{job}").status_code == 404
    assert list((tmp_path / "data" / "jobs").iterdir()) == []


def test_cancelling_never_deletes_a_result(client):
    """A client cannot know that a job has ended while its wish was on the way."""
    answer = upload(client, png())
    job = ended(client, answer)
    assert client.post(f"{API}/jobs/{job['id']}/cancel").status_code == 204
    assert client.get(f"{API}/jobs/{job['id']}").json() == job
    assert len(client.get(f"{API}/jobs/{job['id']}/cases").json()) == 1
    client.app.state.service.jobs.claim = lambda lane, most=1: []
    time.sleep(0.05)
    waiting = upload(client, png(1)).json()["id"]
    for _ in range(2):
        assert client.post(f"{API}/jobs/{waiting}/cancel").status_code == 204
        assert client.get(f"{API}/jobs/{waiting}").json()["status"] == "cancelled"


def test_all_jobs_can_be_listed_a_part_at_a_time(client, monkeypatch):
    jobs = client.app.state.service.jobs
    monkeypatch.setattr(jobs, "claim", lambda lane, most=1: [])
    added = [add_job(jobs) for _ in range(5)]
    listed, part = [], client.get(f"{API}/jobs", params={"limit": 2}).json()
    while part:
        listed += [job["id"] for job in part]
        query = {"limit": 2, "before": listed[-1]}
        part = client.get(f"{API}/jobs", params=query).json()
    assert listed == added[::-1]
    assert client.get(f"{API}/jobs", params={"before": "0" * 32}).status_code == 404
    assert client.get(f"{API}/jobs", params={"before": "x"}).status_code == 422


def test_a_restart_finishes_what_was_accepted(make_client):
    client = make_client()
    client.app.state.service.jobs.claim = lambda lane, most=1: []
    accepted = [upload(client, png(n)) for n in range(3)]
    client.__exit__(None, None, None)
    again = make_client()
    assert {ended(again, answer)["status"] for answer in accepted} == {"done"}


def test_batches_across_requests_give_the_same_scores(make_client, monkeypatch):
    from recap.service.workers import Workers

    client = make_client()
    alone = [ended(client, upload(client, png(n))) for n in range(3)]
    jobs = client.app.state.service.jobs
    waiting, jobs.claim = jobs.claim, lambda lane, most=1: []
    time.sleep(0.05)
    accepted = [upload(client, png(n)) for n in range(3)]
    monkeypatch.setattr(Workers, "_together", lambda self, lane: 8)
    calls = []
    original = Workers._score_together
    monkeypatch.setattr(
        Workers,
        "_score_together",
        lambda self, jobs: calls.append(len(jobs)) or original(self, jobs),
    )
    jobs.claim = waiting
    together = [ended(client, answer) for answer in accepted]
    assert calls == [3]

    def scores(done):
        return [job["result"]["cases"][0]["score"] for job in done]

    assert scores(together) == pytest.approx(scores(alone), rel=1e-5)


def test_a_batch_that_cannot_be_scored_is_left_to_its_jobs_one_by_one(tmp_path):
    """They would be taken up again together, and hold up all others for ever."""
    from recap.service.workers import Workers

    def load(name):
        raise RuntimeError("out of memory")

    bundles = SimpleNamespace(detector=load)
    workers = Workers(ServerSettings(bundles=(), data=tmp_path), None, bundles, None)
    assert workers._score_together([SimpleNamespace(bundle="brain")] * 2) == {}


def test_old_jobs_are_forgotten(store):
    jobs = Jobs(store, 10)
    job = add_job(jobs)
    assert jobs.expire(time.time() + 1) == 0  # it waits
    jobs.cancel(job)
    assert jobs.expire(time.time() + 1) == 1
    assert not store.job_folder(job).exists()


def test_a_full_disk_is_told_and_leaves_nothing(client, monkeypatch, tmp_path):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "place", fail)
    assert upload(client, png()).status_code == 507
    for folder in ("jobs", "incoming"):
        assert list((tmp_path / "data" / folder).iterdir()) == []


def test_a_job_whose_end_could_not_be_noted_is_finished_later(client, monkeypatch):
    jobs, refused = client.app.state.service.jobs, []

    def once_full(name):
        work = getattr(jobs, name)

        def act(*arguments):
            if name in refused:
                return work(*arguments)
            refused.append(name)
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(jobs, name, act)

    once_full("finish")
    once_full("fail")
    job = ended(client, upload(client, png()))
    assert (job["status"], refused) == ("done", ["finish", "fail"])
    assert len(client.get(f"{API}/jobs/{job['id']}/cases").json()) == 1


def test_the_same_files_are_told_by_content_names_and_order(client, make_client, tmp_path):
    def content(*files, of=client):
        return ended(of, upload(of, *files))["content"]

    first = content(("IM1.png", png(1)), ("IM2.png", png(2)))
    assert len(first) == 64
    assert content(("IM1.png", png(1)), ("IM2.png", png(2))) == first
    # Cases are matched by their names, and those of equal names by their order.
    assert content(("IM1.png", png(2)), ("IM2.png", png(1))) != first
    twice = content(("IM.png", png(1)), ("IM.png", png(2)))
    assert content(("IM.png", png(2)), ("IM.png", png(1))) != twice
    assert content(("IM1.png", png(3)), ("IM2.png", png(2))) != first  # another patient's IM1
    hidden = make_client(data=tmp_path / "hidden", deidentify=True)
    assert content(("IM1.png", png(1)), of=hidden) == ""


def test_old_jobs_are_deleted_also_after_that_has_failed(tmp_path, monkeypatch):
    from recap.service import workers

    settings = ServerSettings(bundles=(), data=tmp_path, keep_days=1)
    tries = []

    class FullDisk:
        def expire(self, before):
            tries.append(before)
            if len(tries) == 2:
                cleaner._stopping.set()
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(workers, "_CLEAN_EVERY_SECONDS", 0.0)
    cleaner = workers.Workers(settings, FullDisk(), None, None)
    cleaner._clean()
    assert len(tries) == 2


def test_a_job_whose_end_could_not_be_noted_is_done_again(tmp_path, monkeypatch):
    from recap.service import workers

    store = Store(tmp_path / "data")
    jobs = Jobs(store, limit=9)
    (store.incoming("a" * 32) / "upload").mkdir(parents=True)
    job = jobs.accept(NewJob("a" * 32, "score", "brain", {}, {}, 1))
    worker = workers.Workers(ServerSettings(bundles=(), data=tmp_path), jobs, None, None)
    release, full = jobs.release, [True, True]

    def run(claimed):
        if full:
            raise sqlite3.OperationalError("database or disk is full")
        jobs.finish(claimed[0], "", lambda database: {})
        worker._stopping.set()

    def release_if_there_is_room(each):
        if full:
            full.pop()
            raise sqlite3.OperationalError("database or disk is full")
        return release(each)

    monkeypatch.setattr(workers, "_IDLE_SECONDS", 0.01)
    monkeypatch.setattr(worker, "_run", run)
    monkeypatch.setattr(jobs, "release", release_if_there_is_room)
    thread = threading.Thread(target=worker._work, args=("score",), daemon=True)
    thread.start()
    thread.join(20)
    assert (jobs.get(job).status, jobs.get(job).attempt) == ("done", 1)
    worker._stopping.set()
    store.close()
