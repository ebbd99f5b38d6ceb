"""A database that does not know the folders beside it: an alarm, and the way back."""

import json
import shutil
import sqlite3

import pytest
from typer.testing import CliRunner

from recap.cli.main import app
from recap.errors import InputError, RecapError
from recap.service.jobs import Jobs
from recap.service.store import Store, new_id
from service_calls import API, add_job, ended, png, upload


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


def stop(client):
    client.__exit__(None, None, None)


def tree(folder):
    """Every file below a folder but the database's own."""
    found = {path.relative_to(folder).as_posix() for path in folder.glob("*/**/*")}
    return {name for name in found if not name.startswith("lost/")}


def recover(data, *options):
    run = CliRunner().invoke(app, ["recover", str(data), *options])
    if run.exception and not isinstance(run.exception, SystemExit):
        raise run.exception
    assert run.exit_code == 0, run.output
    return run.output


def end_job(jobs, text="{}"):
    """A job that was scored, as far as the store is concerned."""
    job = add_job(jobs)
    (claimed,) = jobs.claim("score")
    working = jobs.store.job_folder(job) / "working-1"
    working.mkdir()
    (working / "result.json").write_text(text)
    jobs.store.place(working, jobs.store.job_folder(job) / "result-1")
    assert jobs.finish(claimed, "result-1", lambda database: {"count": 1})
    return job


def scored(data):
    """A data folder with one job, its service stopped."""
    store = Store(data)
    job = end_job(Jobs(store, 9))
    store.sweep()
    store.close()
    return job


def empty(database):
    database.write_bytes(b"")


def halve(database):
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        rows = [(new_id(), "x" * 4000, "", 0.0) for _ in range(50)]
        connection.executemany("INSERT INTO bundles VALUES (?, ?, ?, ?)", rows)
    connection.close()
    database.write_bytes(database.read_bytes()[: database.stat().st_size // 2])


def fill_with_garbage(database):
    database.write_bytes(b"no database at all " * 999)


def replace_by_another(database):
    database.unlink()
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE jobs (id TEXT)")
    connection.close()


def make_older(database):
    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM jobs")
    connection.close()


DAMAGES = [
    empty,
    halve,
    fill_with_garbage,
    replace_by_another,
    make_older,
    lambda file: file.unlink(),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_start_removes_what_the_database_does_not_know(data, damage):
    job = scored(data)
    before = tree(data)
    damage(data / "recap.sqlite3")
    for _ in range(2):
        with pytest.raises(InputError, match="recap recover") as refused:
            Store(data)
        assert str(data) in str(refused.value)
    assert tree(data) == before >= {f"jobs/{job}/result-1/result.json"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_adopted_is_there_again(data, damage):
    job = scored(data)
    result = data / "jobs" / job / "result-1" / "result.json"
    case = {"id": 0, "name": "a.png", "status": "ok", "score": 0.5, "images": 1}
    result.write_text(json.dumps({"cases": [case]}))
    damage(data / "recap.sqlite3")
    recover(data, "--adopt")
    store = Store(data)
    store.sweep()
    found = Jobs(store, 9).get(job)
    store.close()
    assert (found.status, found.result, found.summary["count"]) == ("done", "result-1", 1)
    assert result.exists()


def test_a_log_without_its_database_is_kept(data):
    scored(data)
    empty(data / "recap.sqlite3")
    (data / "recap.sqlite3-wal").write_bytes(b"the only copy")
    with pytest.raises(InputError, match="log"):
        Store(data)
    assert (data / "recap.sqlite3-wal").read_bytes() == b"the only copy"
    recover(data, "--adopt")
    assert [path.name for path in data.glob("lost/*/recap.sqlite3-wal")] == ["recap.sqlite3-wal"]


@pytest.mark.parametrize("stray", ["incoming/x", "jobs/y", "bundles/z", f"jobs/{'a' * 32}"])
def test_every_folder_that_is_not_known_is_named(store, stray):
    (store.root / stray).mkdir()
    store.close()
    with pytest.raises(InputError, match=stray):
        Store(store.root)
    assert stray in recover(store.root)
    assert (store.root / stray).exists()
    recover(store.root, "--adopt")
    assert list(store.root.glob(f"lost/*/{stray}"))
    Store(store.root).close()


def test_only_what_is_listed_is_removed_and_only_when_told(store):
    kept = end_job(Jobs(store, 9))
    (store.root / "jobs" / "y").mkdir()
    store.close()
    assert "1 folder removed" in recover(store.root, "--remove")
    assert {path.name for path in (store.root / "jobs").iterdir()} == {kept}
    assert (store.root / "jobs" / kept / "result-1").is_dir()


def test_a_result_that_an_older_database_does_not_know_is_no_rubbish(data):
    store = Store(data)
    jobs = Jobs(store, 9)
    job = add_job(jobs)
    older = data.with_name("older.sqlite3")
    with sqlite3.connect(older) as copy:
        store._connection.backup(copy)
    copy.close()
    (claimed,) = jobs.claim("score")
    working = store.job_folder(job) / "working-1"
    working.mkdir()
    (working / "result.json").write_text('{"cases": []}')
    store.place(working, store.job_folder(job) / "result-1")
    jobs.finish(claimed, "result-1", lambda database: {})
    store.sweep()
    store.close()
    shutil.copy(older, data / "recap.sqlite3")
    with pytest.raises(InputError, match="result-1"):
        Store(data)
    recover(data, "--adopt")
    store = Store(data)
    assert Jobs(store, 9).get(job).status == "done"
    store.close()


def test_without_a_result_a_job_is_scored_again(data):
    store = Store(data)
    job = add_job(Jobs(store, 9), key="MRN-4711")
    store.close()
    assert "4711" not in (data / "jobs" / job / "job.json").read_text()
    empty(data / "recap.sqlite3")
    recover(data, "--adopt")
    store = Store(data)
    jobs = Jobs(store, 9)
    assert jobs.by_key("MRN-4711") == job
    assert [each.id for each in jobs.claim("score")] == [job]
    store.close()


def test_a_damaged_database_is_no_licence_to_remove(data):
    scored(data)
    before = tree(data)
    fill_with_garbage(data / "recap.sqlite3")
    with pytest.raises(InputError, match="damaged"):
        recover(data, "--remove")
    assert tree(data) == before


def test_a_folder_that_is_in_use_or_none_of_a_service_is_refused(store, tmp_path):
    with pytest.raises(RecapError, match="in use"):
        recover(store.root)
    with pytest.raises(RecapError, match="no data folder"):
        recover(tmp_path)
    assert not (tmp_path / "recap.sqlite3").exists()


def test_the_service_goes_on_with_all_that_was_adopted(make_client, domains, data):
    client = make_client()
    job = ended(client, upload(client, ("scan.png", png())))
    good = sorted((domains[0].root / "valid" / "good" / "img").iterdir())[:2]
    files = [("normals", (path.name, path.read_bytes())) for path in good]
    options = json.dumps({"name": "mine", "epochs": 1, "augment": False})
    fit = ended(client, client.post(f"{API}/fits", files=files, data={"options": options}))
    answers = [f"{API}/jobs/{job['id']}/cases", f"{API}/bundles", f"{API}/jobs/{fit['id']}"]
    before = [client.get(address).json() for address in answers]
    stop(client)
    empty(data / "recap.sqlite3")
    with pytest.raises(InputError, match="does not know 3 folders"):
        make_client()
    listed = recover(data, "--adopt")
    assert "bundle 'mine'" in listed
    client = make_client()
    after = [client.get(address).json() for address in answers]
    assert after[:2] == before[:2]
    assert (after[2]["status"], after[2]["result"]) == ("done", {"bundle": "mine"})
    assert ended(client, upload(client, png(), bundle="mine"))["status"] == "done"
    assert client.delete(f"{API}/bundles/mine").status_code == 204
    assert list((data / "bundles").iterdir()) == []
