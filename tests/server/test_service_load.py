"""Fifty clients at once: all are answered, nothing is lost, memory stays flat."""

import threading
import time
from collections import Counter

import httpx
import pytest

from service_calls import API, ENDED, png
from service_process import ServiceProcess

CLIENTS, UPLOADS = 50, 5
MOST_GROWTH_BYTES = 64 * 2**20


def run_clients(address, contents):
    """Statuses of all uploads, and the ids of those that were accepted."""
    statuses, accepted, guard = Counter(), [], threading.Lock()

    def client(number):
        with httpx.Client(timeout=300, trust_env=False) as http:
            for count in range(UPLOADS):
                content = contents[(number * UPLOADS + count) % len(contents)]
                answer = http.post(f"{address}{API}/jobs", files={"file": ("a.png", content)})
                with guard:
                    statuses[answer.status_code] += 1
                    if answer.status_code == 202:
                        accepted.append(answer.json()["id"])
                    else:
                        assert int(answer.headers["Retry-After"]) >= 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses, accepted


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_clients_with_five_uploads_each(bundles, tmp_path, capsys):
    contents = [png(n, (120, 100)) for n in range(40)]
    data = tmp_path / "data"
    with ServiceProcess(bundles, data, queue=100, posts_per_minute=10**6) as service:
        run_few(service, contents)
        before = service.resident_bytes()
        started = time.perf_counter()
        statuses, accepted = run_clients(service.address, contents)
        answered = time.perf_counter() - started
        jobs = wait_for_all(service)
        seconds = time.perf_counter() - started
        after = service.resident_bytes()
        metrics = httpx.get(f"{service.address}/metrics").text
        assert service.stop() == 0
    assert sum(statuses.values()) == CLIENTS * UPLOADS
    assert set(statuses) <= {202, 429}
    assert len(set(accepted)) == len(accepted) == statuses[202]
    ended = {job["id"]: job["status"] for job in jobs}
    assert {ended[job] for job in accepted} == {"done"}
    assert len(list((data / "jobs").glob("*/result-*"))) == len(jobs)
    assert f'recap_jobs{{status="done"}} {len(jobs)}' in metrics
    assert after - before < MOST_GROWTH_BYTES
    with capsys.disabled():
        print(
            f"\n{CLIENTS} × {UPLOADS} uploads: {dict(statuses)}, all answered in {answered:.0f} s, "
            f"accepted ones done after {seconds:.0f} s; memory {before / 2**20:.0f} → "
            f"{after / 2**20:.0f} MB"
        )


def run_few(service, contents):
    """Everything is loaded and warm before memory is first looked at."""
    for content in contents:
        httpx.post(f"{service.address}{API}/jobs", files={"file": ("a.png", content)}, timeout=120)
    wait_for_all(service)


def wait_for_all(service, seconds=1200):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        jobs = httpx.get(f"{service.address}{API}/jobs?limit=1000", timeout=120).json()
        if all(job["status"] in ENDED for job in jobs):
            return jobs
        time.sleep(1)
    raise AssertionError("jobs still wait")
