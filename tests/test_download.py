import hashlib
import random
import urllib.request
from pathlib import Path

import pytest

from file_server import Site, serve
from recap._download import ATTEMPTS_WITHOUT_GAIN, FetchError, download

DATA = random.Random(0).randbytes(100_000)
OTHER = random.Random(1).randbytes(100_000)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def site():
    with serve(DATA) as site:
        yield site


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "new" / "bmad.zip"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("recap._download._BLOCK_BYTES", 10_000)


def fetch(site: Site, target: Path, **options) -> str:
    return download(site.url, target, **{"sha256": sha256(DATA), "pause_s": 0.0} | options)


def ranges(site: Site) -> list[str | None]:
    return [headers.get("Range") for headers in site.asked]


def alone(target: Path) -> bool:
    return [path.name for path in target.parent.iterdir()] == [target.name]


def test_whole_file(site, target):
    steps = []
    assert fetch(site, target, progress=lambda *step: steps.append(step)) == sha256(DATA)
    assert target.read_bytes() == DATA
    assert alone(target)
    assert steps[0] == ("download", 10_000, 100_000, "bmad.zip")
    assert steps[-1] == ("download", 100_000, 100_000, "bmad.zip")
    assert site.asked[0]["Accept-Encoding"] == "identity"


def test_what_is_here_is_checked_and_not_asked_for(site, target):
    target.parent.mkdir()
    target.write_bytes(DATA)
    assert fetch(site, target) == sha256(DATA)
    assert download(site.url, target) == sha256(DATA)
    target.write_bytes(OTHER)
    with pytest.raises(FetchError, match=f"sha256 {sha256(OTHER)}, expected.*Move it away"):
        fetch(site, target)
    assert target.read_bytes() == OTHER
    assert site.asked == []


def test_cut_connections_are_taken_up_again(site, target):
    site.cut_after = 35_000
    assert fetch(site, target) == sha256(DATA)
    assert target.read_bytes() == DATA
    assert ranges(site) == [None, "bytes=35000-", "bytes=70000-"]
    assert {headers.get("If-Range") for headers in site.asked[1:]} == {'"v1"'}


def test_a_later_run_goes_on(site, target):
    site.cut_after = 35_000
    site.answers = []

    def stop(stage, done, total, name):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(site, target, progress=stop)
    assert target.with_name("bmad.zip.part").stat().st_size > 0
    site.cut_after, kept = None, target.with_name("bmad.zip.part").stat().st_size
    fetch(site, target)
    assert ranges(site)[-1] == f"bytes={kept}-"
    assert alone(target)


def test_a_server_without_ranges_starts_again(site, target):
    site.knows_ranges, site.cut_after = False, 60_000
    with pytest.raises(FetchError, match=r"60000 of 100000 bytes.*60000 bytes are kept"):
        fetch(site, target)
    assert len(site.asked) == ATTEMPTS_WITHOUT_GAIN + 1
    site.cut_after = None
    assert fetch(site, target) == sha256(DATA)
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("validator", ["etag", "modified"])
def test_a_file_that_changes_between_attempts(site, target, validator):
    site.etag = None
    setattr(site, validator, '"v1"' if validator == "etag" else "Mon, 01 Jan 2024 00:00:00 GMT")
    site.cut_after = 40_000

    def change(stage, done, total, name):
        if done == 40_000 and site.data == DATA:
            site.data = OTHER
            setattr(
                site, validator, '"v2"' if validator == "etag" else "Tue, 02 Jan 2024 00:00:00 GMT"
            )

    fetch(site, target, sha256=sha256(OTHER), progress=change)
    assert target.read_bytes() == OTHER


def test_a_file_that_becomes_shorter(site, target):
    site.cut_after = 40_000

    def change(stage, done, total, name):
        if done == 40_000:
            site.data, site.cut_after, site.answers = OTHER[:30_000], None, [(416, {})]
            site.etag = '"v2"'

    fetch(site, target, sha256=sha256(OTHER[:30_000]), progress=change)
    assert target.read_bytes() == OTHER[:30_000]


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_validator_nothing_is_pieced_together(site, target, etag):
    site.etag, site.cut_after = etag, 90_000
    with pytest.raises(FetchError, match="90000 of 100000"):
        fetch(site, target)
    assert set(ranges(site)) == {None}


def test_a_wrong_part_is_not_used(site, target):
    site.cut_after = 40_000
    wrong = (206, {"Content-Range": "bytes 5-9/100000", "ETag": '"v1"'})

    def misbehave(stage, done, total, name):
        if done == 40_000:
            site.cut_after, site.answers = None, [wrong]

    fetch(site, target, progress=misbehave)
    assert target.read_bytes() == DATA


def test_a_wrong_digest_leaves_nothing(site, target):
    with pytest.raises(FetchError, match=r"bmad\.zip\.part has sha256 .*, expected 0+\."):
        fetch(site, target, sha256="0" * 64)
    assert list(target.parent.iterdir()) == []


def test_a_digest_in_upper_case(site, target):
    assert fetch(site, target, sha256=sha256(DATA).upper()) == sha256(DATA)


def test_without_a_length(site, target):
    site.says_length = False
    fetch(site, target)
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("says_length", [True, False])
def test_the_limit_holds(site, target, says_length):
    site.says_length = says_length
    with pytest.raises(FetchError, match="99999"):
        fetch(site, target, limit_bytes=99_999)
    assert not target.exists()


def test_a_full_disk_is_told_before(site, target, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 5})())
    with pytest.raises(FetchError, match="100000 bytes are still to come, but only 5 are free"):
        fetch(site, target)


def test_busy_servers_are_waited_for(site, target, monkeypatch):
    pauses = []
    monkeypatch.setattr("time.sleep", pauses.append)
    site.answers = [(503, {}), (429, {"Retry-After": "7"}), (500, {"Retry-After": "9999"})]
    fetch(site, target, pause_s=1.0)
    assert pauses == [2.0, 7.0, 60.0]


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_refusals_are_final(site, target, status):
    site.answers = [(status, {})]
    with pytest.raises(FetchError, match=f"answers {status} .*check the address"):
        fetch(site, target)
    assert len(site.asked) == 1


def test_web_pages_are_no_files(site, target):
    site.content_type = "text/html; charset=utf-8"
    with pytest.raises(FetchError, match="a web page"):
        fetch(site, target, sha256=None)


def test_redirects_are_followed_to_safe_places_only(site, target):
    site.cut_after = 50_000
    there = {"Location": site.url + "?signed"}
    site.answers = [(302, there)]
    fetch(site, target)
    assert target.read_bytes() == DATA
    target.unlink()
    site.answers = [(302, {"Location": "http://files.example/bmad.zip"})]
    with pytest.raises(FetchError, match="only https"):
        fetch(site, target)


@pytest.mark.parametrize(
    "url",
    ["http://files.example/x.zip", "ftp://127.0.0.1/x", "file:///etc/passwd", "x.zip", "https://"],
)
def test_only_https(target, monkeypatch, url):
    monkeypatch.setattr(
        urllib.request.OpenerDirector, "open", lambda *a, **k: pytest.fail("opened")
    )
    with pytest.raises(FetchError, match="only https"):
        download(url, target)


def test_an_unreachable_server_is_given_up(target):
    with serve(b"") as gone:
        pass
    with pytest.raises(FetchError, match=r"cannot be reached.*run the same command again"):
        fetch(gone, target)


def test_parts_of_another_address_are_not_used(site, target):
    site.cut_after = 10_000
    with pytest.raises(ZeroDivisionError):
        fetch(site, target, progress=lambda *step: 1 / 0)
    site.cut_after = None
    download(site.url + "?other", target, sha256=sha256(DATA), pause_s=0)
    assert ranges(site) == [None, None]
