"""A service under load, and under requests made up from its own description: nothing fails."""

import threading
import time
from collections import Counter

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from service_calls import API, ENDED, png, zipped
from service_process import ServiceProcess

CLIENTS, UPLOADS = 50, 2
MOST_GROWTH_BYTES = 64 * 2**20
EXAMPLES = 6


@pytest.fixture(scope="module")
def service(bundles, tmp_path_factory):
    """One for both: a service takes long to start."""
    data = tmp_path_factory.mktemp("live") / "data"
    with ServiceProcess(bundles, data, queue=50, posts_per_minute=10**6) as running:
        yield running


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
def test_fifty_clients_at_once_are_all_answered_and_memory_stays_flat(service):
    contents = [png(n, (120, 100)) for n in range(40)]
    run_few(service, contents)
    before = service.resident_bytes()
    statuses, accepted = run_clients(service.address, contents)
    jobs = wait_for_all(service)
    after = service.resident_bytes()
    metrics = httpx.get(f"{service.address}/metrics").text
    assert sum(statuses.values()) == CLIENTS * UPLOADS
    assert set(statuses) <= {202, 429}
    assert len(set(accepted)) == len(accepted) == statuses[202]
    ended = {job["id"]: job["status"] for job in jobs}
    assert {ended[job] for job in accepted} == {"done"}
    assert len(list((service.data / "jobs").glob("*/result-*"))) == len(jobs)
    assert f'recap_jobs{{status="done"}} {len(jobs)}' in metrics
    assert after - before < MOST_GROWTH_BYTES


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


def finished_job(service):
    """So that made-up requests also reach results."""
    files = {"file": ("a.zip", zipped({"a.png": png(1), "b.png": png(2)}))}
    job = httpx.post(f"{service.address}{API}/jobs", files=files, timeout=120).json()["id"]
    while httpx.get(f"{service.address}{API}/jobs/{job}").json()["status"] not in ENDED:
        time.sleep(0.2)
    return job


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_made_up_request_makes_the_service_fail(service):
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis.specs.openapi.checks import response_schema_conformance

    schema = schemathesis.openapi.from_url(f"{service.address}/api/openapi.json")
    known = {"job": finished_job(service), "case": "0", "bundle": "brain", "number": 0}
    seen = set()

    def check(case):
        # Half of the time what is asked for exists; but it is not deleted under the others.
        if case.method.upper() != "DELETE" and len(str(case.path_parameters)) % 2:
            found = {k: known.get(k, v) for k, v in case.path_parameters.items()}
            case.path_parameters.update(found)
        response = case.call(timeout=60)
        status = response.status_code
        seen.add((case.method, case.path, status))
        assert status < 500 or status == 501, (case.method, case.path, response.text)
        described = case.operation.definition.raw["responses"]
        assert str(status) in described or status in (404, 405), (case.path, status)
        if status == 200 and "json" in str(response.headers.get("content-type")):
            case.validate_response(response, checks=[response_schema_conformance])

    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 20
    for operation in operations:
        made_up = given(case=operation.as_strategy())
        most = settings(
            max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck)
        )
        most(made_up(check))()
    assert {status for _, _, status in seen} >= {200, 404, 422}
    assert httpx.get(f"{service.address}/healthz").status_code == 200
