"""Requests made up from the API's own description: none may make the service fail."""

import time

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from service_calls import API, ENDED, png, zipped
from service_process import ServiceProcess

EXAMPLES = 10


@pytest.fixture
def service(bundles, tmp_path):
    with ServiceProcess(bundles, tmp_path / "data") as running:
        yield running


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
