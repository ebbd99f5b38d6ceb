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

from service_calls import API, ENDED, png, zipped
from service_process import ServiceProcess

TESTS = Path(__file__).parents[1]


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
def test_kills_under_load_lose_nothing(bundles, tmp_path):
    clients = Clients(12)
    data = tmp_path / "data"
    for round, seconds in enumerate((1.0, 2.0, 3.0)):
        service = ServiceProcess(bundles, data)
        clients.address = service.address
        if round == 0:
            for thread in clients.threads:
                thread.start()
        time.sleep(seconds)
        service.kill()
    service = ServiceProcess(bundles, data)
    clients.address = service.address
    for thread in clients.threads:
        thread.join(120)
    assert len(clients.accepted) == 12
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        jobs = httpx.get(f"{service.address}{API}/jobs?limit=1000").json()
        if all(job["status"] in ENDED for job in jobs):
            break
        time.sleep(0.5)
    assert {job["status"] for job in jobs} == {"done"}
    # One job for each key: those whose answer was lost were found again, not made twice.
    assert sorted(job["id"] for job in jobs) == sorted(clients.accepted.values())
    assert service.stop() == 0
    for job in clients.accepted.values():
        results = list((data / "jobs" / job).glob("result-*"))
        assert len(results) == 1
        assert len(json.loads((results[0] / "result.json").read_text())["cases"]) == 4
    with sqlite3.connect(data / "recap.sqlite3") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.slow
def test_a_stop_lets_jobs_go_on_later(bundles, tmp_path):
    service = ServiceProcess(bundles, tmp_path / "data")
    content = zipped({f"{n}.png": png(n) for n in range(200)})
    answer = httpx.post(
        f"{service.address}{API}/jobs", files={"file": ("a.zip", content)}, timeout=120
    )
    job = answer.json()["id"]
    with httpx.stream("GET", f"{service.address}{API}/jobs/{job}/events", timeout=60) as events:
        next(events.iter_lines())
        assert service.stop() == 0  # although somebody listens
    service = ServiceProcess(bundles, tmp_path / "data")
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        told = httpx.get(f"{service.address}{API}/jobs/{job}").json()
        if told["status"] in ENDED:
            break
        time.sleep(0.2)
    assert (told["status"], told["result"]["count"]) == ("done", 200)
    service.stop()
