"""Everything beside the data: viewer, description of the API, health, metrics, limits."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from recap.errors import SettingsError
from recap.service.auth import MOST_CLIENTS, Places, Rate
from recap.service.metrics import Metrics
from recap.service.settings import served_names
from recap.service.site import static_files
from service_calls import API, ended, png, upload


def test_the_viewer_is_served(client):
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    for kind, address in re.findall(r'(src|href)="(static/[^"]+)"', page.text):
        assert client.get(f"/{address}").status_code == 200, (kind, address)


@pytest.mark.parametrize(
    "name",
    ["", ".", "../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd", "x/../../app.py"],
)
def test_only_listed_files_exist(client, name):
    answer = client.get(f"/static/{name}")
    assert answer.status_code == 404
    assert "create_app" not in answer.text


def test_nothing_is_fetched_from_elsewhere(client):
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in static_files().values()]
    texts.append(client.get("/api/docs").text)
    for text in texts:
        assert not re.search(r"(src|href|url|import|fetch)\W{1,3}(https?:)?//", text)


def test_the_description_lists_every_address(client):
    paths = client.get("/api/openapi.json").json()["paths"]
    page = client.get("/api/docs").text
    assert len(paths) > 20
    assert all(path in page for path in paths)
    assert "<script" not in page
    assert client.get("/api/docs.css").headers["content-type"].startswith("text/css")
    assert client.get("/docs", follow_redirects=False).headers["location"] == "/api/docs"


@pytest.mark.parametrize("prefix", ["", API])
def test_health_tells_when_a_worker_has_ended(client, monkeypatch, prefix):
    assert client.get(f"{prefix}/healthz").json() == {"status": "ok"}
    monkeypatch.setattr(client.app.state.service.workers, "are_alive", lambda: False)
    assert client.get(f"{prefix}/healthz").status_code == 503


def test_metrics_count_requests_and_jobs(client):
    ended(client, upload(client, png()))
    upload(client, b"nothing")
    text = client.get("/metrics").text
    assert 'recap_jobs{status="done"} 1' in text
    assert "recap_queue_length 0" in text
    assert 'recap_requests_total{method="POST",route="/api/v1/jobs",status="202"} 1' in text
    assert 'recap_requests_total{method="POST",route="/api/v1/jobs",status="415"} 1' in text
    assert 'recap_job_seconds_count{kind="score",status="done"} 1' in text
    assert "recap_images_scored_total 1" in text


def test_metrics_are_what_prometheus_reads():
    metrics = Metrics()
    metrics.request("GET", "/x", 200, 0.3)
    metrics.request("GET", "/x", 200, 3.0)
    found = text_string_to_metric_families(metrics.text({"queued": 2}).decode())
    seen = {(each.name, *each.labels.values()): each.value for one in found for each in one.samples}
    assert seen["recap_request_seconds_bucket", "0.5", "/x"] == 1
    assert seen["recap_request_seconds_bucket", "+Inf", "/x"] == 2
    assert seen["recap_request_seconds_sum", "/x"] == pytest.approx(3.3)
    assert seen["recap_queue_length",] == 2
    assert seen["recap_resident_bytes",] > 0
    assert Metrics().mean_job_seconds() == 1.0  # of another service in this process


def test_a_rate_allows_a_burst_then_its_pace():
    rate = Rate(60)
    assert [rate.wait_seconds("a", 0.0) for _ in range(30)] == [0.0] * 30
    assert rate.wait_seconds("a", 0.0) == pytest.approx(1.0)
    assert rate.wait_seconds("b", 0.0) == 0.0
    assert rate.wait_seconds("a", 1.0) == 0.0
    assert rate.wait_seconds("a", 1.0) > 0


def test_a_rate_remembers_a_bounded_number_of_clients():
    rate = Rate(60)
    for number in range(2 * MOST_CLIENTS):
        rate.wait_seconds(str(number), 0.0)
    assert len(rate._left) == MOST_CLIENTS


def test_places_come_back():
    places = Places(1)
    with places.taken() as first, places.taken() as second:
        assert (first, second) == (True, False)
    with places.taken() as again:
        assert again


def test_bundles_need_names_for_addresses(bundles, tmp_path):
    import shutil

    assert list(served_names(tuple(bundles))) == ["brain", "chest"]
    with pytest.raises(SettingsError, match="both called"):
        served_names((bundles[0], bundles[0]))
    with pytest.raises(SettingsError, match="nothing to serve"):
        served_names(())
    shutil.copytree(bundles[0], tmp_path / "a b")
    with pytest.raises(SettingsError, match="Rename the folder"):
        served_names((tmp_path / "a b",))


def test_bundles_are_listed(client):
    brain, chest = client.get(f"{API}/bundles").json()
    assert (brain["name"], brain["mode"]) == ("brain", "few-shot")
    assert (chest["name"], chest["mode"]) == ("chest", "normal-only")
    assert brain["support"] == {"normal": 3, "abnormal": 3}
    assert brain["calibration"]["source"] == "leave-one-out"
    assert "/" not in brain["encoder"]
