"""An accepted job ends exactly once, whenever the service is killed."""

import json
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from service_calls import API, ENDED, ended, png, zipped
from service_process import ServiceProcess

TESTS = Path(__file__).parents[1]
LONG = 24
"""Images of a job that is not done when the service is told to stop."""


def test_killed_at_every_step():
    run = subprocess.run(
        [sys.executable, str(TESTS / "service_deaths.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert int(run.stdout.split()[0]) > 20


class Clients:
    """Threads that each upload a file until it is accepted, through deaths and restarts."""

    def __init__(self, count):
        self.address = ""
        self.http = httpx.Client(timeout=60, trust_env=False)
        self.accepted = {}
        self.threads = [threading.Thread(target=self._run, args=(n,)) for n in range(count)]
        for thread in self.threads:
            thread.daemon = True

    def _run(self, number):
        content = zipped({f"{n}.png": png(100 * number + n) for n in range(4)})
        while number not in self.accepted:
            try:
                answer = self.http.post(
                    f"{self.address}{API}/jobs",
                    files={"file": ("a.zip", content)},
                    headers={"Idempotency-Key": f"key-{number}"},
                )
                if answer.status_code == 202:
                    self.accepted[number] = answer.json()["id"]
            except httpx.HTTPError:
                pass
            time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_neither_a_kill_under_load_nor_a_stop_loses_anything(bundles, make_client, tmp_path):
    """One after the other in one folder; a service takes long to start, the last is in here."""
    clients = Clients(8)
    data = tmp_path / "data"
    with ServiceProcess(bundles, data) as service:
        clients.address = service.address
        for thread in clients.threads:
            thread.start()
        time.sleep(2)
    with ServiceProcess(bundles, data) as service:
        clients.address = service.address
        for thread in clients.threads:
            thread.join(120)
        assert len(clients.accepted) == 8
        jobs = wait_for_jobs(service)
        assert {job["status"] for job in jobs} == {"done"}
        # One job for each key: those whose answer was lost were found again, not made twice.
        assert sorted(job["id"] for job in jobs) == sorted(clients.accepted.values())
        unfinished = begin_long_job(service)
        events = f"{service.address}{API}/jobs/{unfinished.json()['id']}/events"
        with httpx.stream("GET", events, timeout=60) as listened:
            next(listened.iter_lines())
            assert service.stop() == 0  # although somebody listens
    told = ended(make_client(), unfinished)
    assert (told["status"], told["result"]["count"]) == ("done", LONG)
    for job in clients.accepted.values():
        results = list((data / "jobs" / job).glob("result-*"))
        assert len(results) == 1
        assert len(json.loads((results[0] / "result.json").read_text())["cases"]) == 4
    with sqlite3.connect(data / "recap.sqlite3") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def begin_long_job(service):
    content = zipped({f"{n}.png": png(n) for n in range(LONG)})
    answer = httpx.post(
        f"{service.address}{API}/jobs", files={"file": ("a.zip", content)}, timeout=120
    )
    return answer


def wait_for_jobs(service, seconds=400):
    """All jobs, when all have ended."""
    deadline = time.monotonic() + seconds
    while True:
        jobs = httpx.get(f"{service.address}{API}/jobs?limit=1000", timeout=30).json()
        if all(job["status"] in ENDED for job in jobs) or time.monotonic() > deadline:
            return jobs
        time.sleep(0.5)
