import io
import random
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recap._archive as archive_module
from recap._archive import unpack_archive
from recap.errors import InputError

FILES = {"Brain/a.png": b"a" * 5000, "Brain/deep/b.png": b"b", "README": b"read", "empty": b""}


def make(path: Path, files: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return path
    with tarfile.open(path, "w:" + path.suffix[1:].replace("tar", "")) as archive:
        for name, data in files.items():
            add(archive, name, data)
    return path


def add(
    archive: tarfile.TarFile, name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE
) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.type = len(data), kind
    info.linkname = "/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
    archive.addfile(info, io.BytesIO(data))


def tree(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz", "tar.xz", "tar.bz2"])
def test_round_trip(tmp_path: Path, suffix: str) -> None:
    steps = []
    archive = make(tmp_path / f"x.{suffix}", FILES)
    written = unpack_archive(archive, tmp_path / "out", progress=lambda *step: steps.append(step))
    assert tree(tmp_path / "out") == FILES
    assert sorted(written) == sorted(tmp_path / "out" / name for name in FILES)
    assert steps[-1] == ("unpack", 4, 4, "")


@pytest.mark.parametrize("suffix", ["zip", "tar.gz"])
def test_files_go_where_place_says(tmp_path: Path, suffix: str) -> None:
    archive = make(tmp_path / f"x.{suffix}", FILES)

    def place(path: PurePosixPath) -> PurePosixPath | None:
        return PurePosixPath("moved", path.name) if path.parts[0] == "Brain" else None

    unpack_archive(archive, tmp_path / "out", place)
    assert tree(tmp_path / "out") == {"moved/a.png": b"a" * 5000, "moved/b.png": b"b"}


@pytest.mark.parametrize("suffix", ["zip", "tar"])
@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/evil", "a\\..\\..\\evil", "C:/evil", "..", "a/.."]
)
def test_names_that_lead_out(tmp_path: Path, suffix: str, name: str) -> None:
    archive = make(tmp_path / f"x.{suffix}", {"good": b"1", name: b"2"})
    with pytest.raises(InputError, match=r"leads out of the folder.*Nothing was unpacked"):
        unpack_archive(archive, tmp_path / "deep/out")
    assert [path.name for path in tmp_path.rglob("*")] == [archive.name]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_tar_links_and_devices(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        add(archive, "good", b"1")
        add(archive, "bad", kind=kind)
    with pytest.raises(InputError, match="'bad' is a link, a device"):
        unpack_archive(tmp_path / "x.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_zip_links_and_secrets(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("bad")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(InputError, match="'bad' is a link"):
        unpack_archive(tmp_path / "x.zip", tmp_path / "out")
    plain = make(tmp_path / "y.zip", {"bad": b"1"}).read_bytes()
    secret = bytearray(plain)
    secret[plain.index(b"PK\x01\x02") + 8] |= 1  # the bit for encryption, in the directory
    (tmp_path / "y.zip").write_bytes(secret)
    with pytest.raises(InputError, match="encrypted"):
        unpack_archive(tmp_path / "y.zip", tmp_path / "out")


@pytest.mark.parametrize("suffix", ["zip", "tar.gz"])
def test_the_limits_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    archive = make(tmp_path / f"bomb.{suffix}", {"a": bytes(600_000), "b": bytes(400_001)})
    with pytest.raises(InputError, match="more than 1000000 bytes"):
        unpack_archive(archive, tmp_path / "out", limit_bytes=1_000_000)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(archive_module, "LIMIT_FILES", 1)
    with pytest.raises(InputError, match="or 1 files"):
        unpack_archive(archive, tmp_path / "out")


def test_a_full_disk_is_told_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 5})())
    with pytest.raises(InputError, match="only 5 are free"):
        unpack_archive(make(tmp_path / "x.zip", FILES), tmp_path / "out")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a", "1")
        archive.writestr("a", "2")
    with pytest.raises(InputError, match="twice"):
        unpack_archive(tmp_path / "x.zip", tmp_path / "out")


def test_backslashes_between_folders(tmp_path: Path) -> None:
    unpack_archive(make(tmp_path / "x.zip", {"study\\series\\1": b"1"}), tmp_path / "out")
    assert tree(tmp_path / "out") == {"study/series/1": b"1"}


def test_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"<html>")
    with pytest.raises(InputError, match="neither a zip nor a tar"):
        unpack_archive(tmp_path / "x.zip", tmp_path / "out")


@pytest.mark.parametrize("suffix", ["zip", "tar.gz", "tar.xz"])
@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_damaged_archives_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    archive = make(folder / f"x.{suffix}", FILES)
    data, rng = bytearray(archive.read_bytes()), random.Random(seed)
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    archive.write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
    with suppress(InputError):
        unpack_archive(archive, folder / "out", limit_bytes=10_000_000)
    assert {path.name for path in folder.iterdir()} <= {archive.name, "out"}
