"""Tokens, sessions, other sites' pages, and the headers of all answers."""

import pytest

from recap.errors import SettingsError
from recap.service.auth import HEADERS, Gate
from recap.service.settings import ServerSettings, check_exposure, is_loopback, read_own_token
from service_calls import API, png, upload

TOKEN = "correct-horse-battery-staple"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
JOB = "0" * 32
PRIVATE = [
    ("GET", "/bundles"),
    ("GET", "/jobs"),
    ("POST", "/jobs"),
    ("POST", "/fits"),
    ("GET", f"/jobs/{JOB}"),
    ("DELETE", f"/jobs/{JOB}"),
    ("POST", f"/jobs/{JOB}/cancel"),
    ("GET", f"/jobs/{JOB}/events"),
    ("GET", f"/jobs/{JOB}/cases"),
    ("GET", f"/jobs/{JOB}/cases/0/image/0.png"),
    ("GET", f"/jobs/{JOB}/cases/0/nearest?x=1&y=1"),
    ("GET", f"/jobs/{JOB}/result.json"),
    ("GET", f"/jobs/{JOB}/result.nii.gz"),
    ("GET", f"/jobs/{JOB}/result.dcm.zip"),
    ("GET", f"/jobs/{JOB}/download.zip"),
    ("GET", "/bundles/brain/download.zip"),
    ("GET", "/bundles/brain/support/0.png"),
    ("POST", "/bundles/brain/calibrate"),
    ("DELETE", "/bundles/brain"),
    ("GET", "/metrics"),
]


@pytest.fixture
def guarded(make_client):
    return make_client(token=TOKEN)


def test_data_needs_the_token(guarded):
    for method, address in PRIVATE:
        answer = guarded.request(method, API + address)
        assert answer.status_code == 401, (method, address)
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_every_route_is_private_or_known_to_be_public(guarded):
    public = {"/", "/static/{name:path}", "/docs", "/api/docs", "/api/docs.css"}
    public |= {"/healthz", f"{API}/healthz", f"{API}/session"}
    for path, methods in guarded.get("/api/openapi.json").json()["paths"].items():
        if path in public:
            continue
        for method in methods:
            address = path.format(job=JOB, case="0", number=0, bundle="brain")
            answer = guarded.request(method.upper(), address)
            assert answer.status_code == 401, (method, path)


def test_the_token_opens(guarded):
    assert guarded.get(f"{API}/jobs", headers=BEARER).status_code == 200
    for wrong in ("", "Bearer", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x"):
        assert guarded.get(f"{API}/jobs", headers={"Authorization": wrong}).status_code == 401


@pytest.mark.parametrize(("place", "first"), [("jobs", 401), ("session", 200)])
def test_guessing_is_slowed_down(guarded, place, first):
    """Wherever a guess is answered, also where no token is needed."""
    wrong = {"Authorization": "Bearer wrong"}
    guesses = [guarded.get(f"{API}/{place}", headers=wrong) for _ in range(40)]
    found = [answer.status_code for answer in guesses]
    assert found[0] == first
    assert found[-1] == 429
    assert "Retry-After" in guesses[-1].headers
    # One count for all places, and for those who show nothing or the right token there is none.
    assert guarded.post(f"{API}/session", json={"token": "wrong"}).status_code == 429
    assert guarded.get(f"{API}/session").json() == {"needs_token": True, "signed_in": False}
    assert guarded.get(f"{API}/session", headers=BEARER).json()["signed_in"]
    assert guarded.get(f"{API}/jobs", headers=BEARER).status_code == 200


def test_a_browser_gets_a_cookie_that_scripts_cannot_read(guarded):
    assert guarded.get(f"{API}/session").json() == {"needs_token": True, "signed_in": False}
    assert guarded.post(f"{API}/session", json={"token": "wrong"}).status_code == 401
    answer = guarded.post(f"{API}/session", json={"token": TOKEN})
    assert answer.status_code == 204
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie
    assert guarded.get(f"{API}/jobs").status_code == 200
    assert guarded.get(f"{API}/session").json()["signed_in"]
    guarded.delete(f"{API}/session")
    assert guarded.get(f"{API}/jobs").status_code == 401


@pytest.mark.parametrize("cookie", ["", ".", "a.b.c", "é.9999999999.x", "x.9999999999." + "0" * 64])
def test_made_up_cookies(cookie, tmp_path):
    gate = Gate(ServerSettings(bundles=(), data=tmp_path, token=TOKEN))
    assert not gate.is_session(cookie)


def test_sessions_end(tmp_path, monkeypatch):
    import time

    gate = Gate(ServerSettings(bundles=(), data=tmp_path, token=TOKEN))
    other = Gate(ServerSettings(bundles=(), data=tmp_path, token=TOKEN + "2"))
    session = gate.new_session()
    assert gate.is_session(session)
    assert not other.is_session(session)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 13 * 3600)
    assert not gate.is_session(session)


def test_a_session_takes_small_json_only(guarded):
    for body in (b"", b"[]", b"{}", b"null", b'"x"', b"\xff", b"[" * 3000, b"x" * 5000):
        assert guarded.post(f"{API}/session", content=body).status_code in (413, 422)


def test_another_sites_page_cannot_send(guarded):
    guarded.post(f"{API}/session", json={"token": TOKEN})
    foreign = [{"Origin": each} for each in ("https://evil.example", "null", "http://[")]
    for headers in (*foreign, {"Sec-Fetch-Site": "cross-site"}):
        files = {"file": ("a.png", png())}
        assert guarded.post(f"{API}/jobs", files=files, headers=headers).status_code == 403
        assert guarded.delete(f"{API}/jobs/{JOB}", headers=headers).status_code == 403
    own = {"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}
    assert guarded.delete(f"{API}/jobs/{JOB}", headers=own).status_code == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "["]
)
def test_a_name_that_points_here_is_refused(client, host):
    assert client.get(f"{API}/jobs", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000"])
def test_own_names_are_answered(client, host):
    assert client.get(f"{API}/jobs", headers={"Host": host}).status_code == 200


def test_headers_are_on_every_answer(client):
    answers = [
        client.get("/"),
        client.get("/nothing"),
        client.get(f"{API}/jobs"),
        client.get(f"{API}/jobs/x"),
        client.post(f"{API}/jobs"),
    ]
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert "server" not in answer.headers
    assert all(answer.headers["cache-control"] == "no-store" for answer in answers[1:])


def test_others_are_served_with_a_token_only(tmp_path):
    for host in ("0.0.0.0", "::", "192.168.0.5", "example.org"):
        settings = ServerSettings(bundles=(), data=tmp_path, host=host)
        with pytest.raises(SettingsError, match="--token-file"):
            check_exposure(settings)
        check_exposure(settings.model_copy(update={"token": TOKEN}))


def test_a_proxys_name_needs_a_token_and_is_then_answered(make_client, tmp_path):
    names = {"public_hosts": ("recap.example",)}
    with pytest.raises(SettingsError, match="--token-file"):
        check_exposure(ServerSettings(bundles=(), data=tmp_path, **names))
    client = make_client(token=TOKEN, **names)
    headers = {"Host": "recap.example", "Origin": "https://recap.example", **BEARER}
    assert client.delete(f"{API}/jobs/{JOB}", headers=headers).status_code == 404
    headers["Host"] = "evil.example"
    assert client.delete(f"{API}/jobs/{JOB}", headers=headers).status_code == 421


def test_loopback_names():
    assert all(map(is_loopback, ["127.0.0.1", "127.1.2.3", "::1", "localhost"]))
    assert not any(map(is_loopback, ["", "0.0.0.0", "localhost.evil.example", "10.0.0.1"]))


@pytest.mark.parametrize("content", [b"", b"short", b"two words of a token", b"\xff" * 40])
def test_weak_tokens_are_refused(tmp_path, content):
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(SettingsError):
        read_own_token(tmp_path / "token")


def test_a_token_file(tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert read_own_token(tmp_path / "token") == TOKEN


def test_uploads_of_one_client_are_counted(make_client):
    client = make_client(posts_per_minute=4)
    found = [upload(client, png()).status_code for _ in range(4)]
    assert found == [202, 202, 429, 429]


def test_logs_name_nobody(client, caplog, tmp_path):
    caplog.set_level("DEBUG", "recap.service")
    upload(client, ("Doe_Jane_1970.png", png()))
    upload(client, ("Doe_Jane_1970.png", b"broken"))
    client.get(f"{API}/jobs/{JOB}/cases/Doe_Jane_1970.png/image/0.png")
    assert "/jobs" in caplog.text
    assert "Doe" not in caplog.text


def test_an_unexpected_error_is_a_plain_500(client, caplog, monkeypatch):
    service = client.app.state.service

    def fall(limit, before):
        raise ValueError("Doe^Jane")

    monkeypatch.setattr(service.jobs, "latest", fall)
    answer = client.get(f"{API}/jobs")
    assert answer.status_code == 500
    assert "Doe" not in answer.text + caplog.text
    assert "ValueError" in caplog.text
    assert answer.headers["x-content-type-options"] == "nosniff"
