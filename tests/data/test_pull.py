import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from file_server import serve
from recap.data import find_domains
from recap.data import pull as pull_module
from recap.data.pull import SOURCES, pull
from recap.errors import InputError, SettingsError


def archive_bytes(path: Path, *domains: str, prefix: str = "") -> bytes:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("LICENSE", "")
        for domain in domains:
            archive.writestr(f"__MACOSX/{prefix}{domain}/test/good/._1.png", b"junk")
            archive.writestr(f"{prefix}{domain}/.DS_Store", b"junk")
            for name in ("train/good/0.png", "valid/good/img/1.png", "test/good/img/2.png"):
                archive.writestr(f"{prefix}{domain}/{name}", domain + name)
            for split in ("valid", "test"):
                archive.writestr(f"{prefix}{domain}/{split}/Ungood/img/3.png", domain + split)
                archive.writestr(f"{prefix}{domain}/{split}/Ungood/label/3.png", b"mask")
    return path.read_bytes()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A host of a small bmad.zip that is pinned as the real one is."""
    with serve(archive_bytes(tmp_path / "made.zip", "Brain", "Liver", "Chest")) as site:
        source = SOURCES["bmad"].__class__(
            site.url, hashlib.sha256(site.data).hexdigest(), "its maker", "tiny", "CC0"
        )
        monkeypatch.setitem(pull_module.SOURCES, "bmad", source)
        yield site


def test_the_pinned_source_is_a_whole_digest():
    source = SOURCES["bmad"]
    assert source.url.startswith("https://")
    assert source.sha256 is not None
    assert len(bytes.fromhex(source.sha256)) == 32


def test_all_domains(site, tmp_path):
    said, stages = [], set()
    to = tmp_path / "data"
    domains = pull("bmad", to, report=lambda stage, *_: stages.add(stage), say=said.append)
    assert [domain.name for domain in domains] == ["Brain", "Liver", "Chest"]
    assert find_domains(to) == domains
    brain = domains[0]
    assert [len(part) for part in (brain.train(), brain.pool(), brain.test())] == [1, 2, 2]
    assert brain.test()[1].mask == to / "Brain/test/Ungood/label/3.png"
    assert stages == {"download", "unpack"}
    assert "CC0" in said[0]
    assert "its maker" in said[0]
    assert "as expected" in said[1]
    assert {path.name for path in to.iterdir()} == {
        *("Brain", "Liver", "Chest", "bmad.zip", "pulled.json")
    }
    assert not list((to / "Brain").glob(".*"))


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_in_the_way_is_told_before_the_download(site, tmp_path, kind):
    to = tmp_path / "data"
    (to / "Brain").mkdir(parents=True)  # empty folders are not
    if kind == "folder":
        (to / "Liver" / "notes").mkdir(parents=True)
    elif kind == "file":
        (to / "Liver").touch()
    else:
        (to / "Liver").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match=r"data/Liver: holds something else .* another --to\."):
        pull("bmad", to, ["brain", "liver"])
    assert site.asked == []
    assert [domain.name for domain in pull("bmad", to, ["brain"])] == ["Brain"]


def test_named_domains_and_nothing_twice(site, tmp_path):
    assert [d.name for d in pull("bmad", tmp_path, ["brainMRI"])] == ["Brain"]
    assert len(site.asked) == 1
    assert pull("bmad", tmp_path, ["brain"])[0].name == "Brain"
    assert not (tmp_path / "Liver").exists()
    assert [d.name for d in pull("bmad", tmp_path, ["Liver_AD", "brain"])] == ["Brain", "Liver"]
    assert len(site.asked) == 1  # the archive was still there


def test_interrupted_pulls_go_on(site, tmp_path, monkeypatch):
    monkeypatch.setattr("recap._download._BLOCK_BYTES", 500)

    def stop_at(stage, call):
        calls = []

        def report(now, *_):
            calls.append(now)
            if calls.count(stage) == call:
                raise KeyboardInterrupt

        return report

    with pytest.raises(KeyboardInterrupt):
        pull("bmad", tmp_path, report=stop_at("download", 3))
    assert (tmp_path / "bmad.zip.part").stat().st_size == 1500
    with pytest.raises(KeyboardInterrupt):
        pull("bmad", tmp_path, report=stop_at("unpack", 3))
    assert "Range" in site.asked[1]
    assert not (tmp_path / "Brain").exists()
    assert len(pull("bmad", tmp_path)) == 3


def test_another_archive_is_refused(site, tmp_path):
    site.data = archive_bytes(tmp_path / "other.zip", "Brain")
    with pytest.raises(InputError, match=r"expected .* not kept"):
        pull("bmad", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_other_hosts_are_trusted_once_and_not_silently(site, tmp_path):
    site.data = archive_bytes(tmp_path / "mine.zip", "Brain_AD", "Liver_AD", prefix="BMAD/")
    digest, url, said = hashlib.sha256(site.data).hexdigest(), site.url + "?lab", []
    to = tmp_path / "data"
    pull("bmad", to, ["brain"], url=url, say=said.append)
    assert "NO checksum is known" in said[0]
    assert digest in said[1]
    assert "NOT CHECKED" in said[1]
    assert json.loads((to / "pulled.json").read_text())[url]["sha256"] == digest
    (to / "bmad.zip").unlink()
    pull("bmad", to, ["liver"], url=url, say=said.append)
    assert "earlier pull" in said[3]
    assert "as expected" in said[4]
    (to / "bmad.zip").unlink()
    site.data += b"changed"
    with pytest.raises(InputError, match=f"expected {digest}"):
        pull("bmad", to, ["chest"], url=url)


def test_a_given_checksum_counts(site, tmp_path):
    with pytest.raises(InputError, match="expected 0000"):
        pull("bmad", tmp_path / "a", url=site.url + "?lab", sha256="0" * 64)
    digest = hashlib.sha256(site.data).hexdigest()
    assert pull("bmad", tmp_path / "b", url=site.url + "?lab", sha256=digest.upper())


def test_what_the_archive_does_not_hold(site, tmp_path):
    with pytest.raises(InputError, match="does not hold Histopathology"):
        pull("bmad", tmp_path, ["his", "brain"])
    assert {path.name for path in tmp_path.iterdir()} >= {"bmad.zip"}
    assert not (tmp_path / "Brain").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"name": "mvtec"}, "Known: bmad"),
        ({"domains": ["knee"]}, "no domain 'knee'. Choose from brain, liver"),
        ({"sha256": "abc"}, "'abc' is not a sha256"),
    ],
)
def test_impossible_requests(tmp_path, arguments, reason):
    with pytest.raises(SettingsError, match=reason):
        pull(**{"name": "bmad", "to": tmp_path} | arguments)


def test_a_damaged_record(site, tmp_path):
    (tmp_path / "pulled.json").write_text('{"x": 1}')
    with pytest.raises(InputError, match=r"pulled\.json"):
        pull("bmad", tmp_path, url=site.url + "?lab")
