import hashlib
import subprocess
import sys
import urllib.request

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap import _download
from recap._download import (
    FetchError,
    fetch_sdist,
    fetch_wheel,
    find_sdist_link,
    sha256_of,
)

PIP_OUTPUT = """
  Skipping link: none of the wheel's tags (cp37-cp37m-win_amd64) are compatible: \
https://files.example/aa/my_tool-3.0.1-cp37-cp37m-win_amd64.whl#sha256=00 (from https://x.example)
  Skipping link: No sources permitted for my-tool: \
https://files.example/bb/my_tool-3.0.1a3.tar.gz#sha256=11 (from https://x.example/simple/)
  Skipping link: No sources permitted for my-tool: \
https://files.example/cc/my_tool-3.0.1.tar.gz#sha256=22 (from https://x.example/simple/)
"""


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def fake_pip(monkeypatch, *, files=(), stdout="", stderr="", code=0):
    """Stand in for pip: write files to --dest and answer."""
    commands = []

    def run(command, **kwargs):
        commands.append(command)
        destination = command[command.index("--dest") + 1]
        for name, data in files:
            with open(f"{destination}/{name}", "wb") as stream:  # noqa: PTH123
                stream.write(data)
        return subprocess.CompletedProcess(command, code, stdout, stderr)

    monkeypatch.setattr(_download.subprocess, "run", run)
    return commands


@given(st.binary(max_size=5000))
def test_digest_equals_hashlib(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("digest") / "file"
    path.write_bytes(data)
    assert sha256_of(path) == sha256(data)


def test_wheel_lands_in_the_folder_and_only_wheels_are_allowed(tmp_path, monkeypatch):
    commands = fake_pip(monkeypatch, files=[("tool-1.0-py3-none-any.whl", b"wheel")])
    path = fetch_wheel("tool==1.0", sha256(b"wheel"), tmp_path / "new")
    assert path == tmp_path / "new" / "tool-1.0-py3-none-any.whl"
    assert path.read_bytes() == b"wheel"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    (command,) = commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[command.index("--only-binary") + 1] == ":all:"
    assert {"--no-deps", "--pre"} <= set(command)
    assert command[-2:] == ["--", "tool==1.0"]


def test_wrong_wheel_is_not_kept(tmp_path, monkeypatch):
    fake_pip(monkeypatch, files=[("tool-1.0-py3-none-any.whl", b"other")])
    with pytest.raises(FetchError, match=f"{sha256(b'other')}, expected {sha256(b'wheel')}"):
        fetch_wheel("tool==1.0", sha256(b"wheel"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_failing_pip_is_quoted(tmp_path, monkeypatch):
    fake_pip(monkeypatch, stderr="WARNING: slow\nERROR: No matching distribution\n", code=1)
    with pytest.raises(FetchError, match=r"tool==1\.0: ERROR: No matching distribution\. Check"):
        fetch_wheel("tool==1.0", "0" * 64, tmp_path)


def test_slow_pip_is_given_up(tmp_path, monkeypatch):
    def run(command, **kwargs):
        raise subprocess.TimeoutExpired(command, kwargs["timeout"])

    monkeypatch.setattr(_download.subprocess, "run", run)
    with pytest.raises(FetchError, match="within 7 s"):
        fetch_wheel("tool==1.0", "0" * 64, tmp_path, timeout_s=7)


@pytest.mark.parametrize("name", ["my-tool", "my_tool", "My.Tool"])
def test_sdist_link_is_read_from_pip(name):
    assert (
        find_sdist_link(PIP_OUTPUT, name, "3.0.1")
        == "https://files.example/cc/my_tool-3.0.1.tar.gz"
    )


@pytest.mark.parametrize(("name", "version"), [("my-tool", "3.0"), ("tool", "3.0.1")])
def test_other_releases_are_no_match(name, version):
    assert find_sdist_link(PIP_OUTPUT, name, version) is None


def sdist_at(tmp_path, monkeypatch, data):
    """pip that knows one source archive, on disk."""
    archive = tmp_path / "index" / "tool-1.0.tar.gz"
    archive.parent.mkdir()
    archive.write_bytes(data)
    link = f"  Skipping link: No sources permitted for tool: {archive.as_uri()}#sha256=00 (from x)"
    return fake_pip(monkeypatch, stdout=link, stderr="ERROR: No matching distribution", code=1)


def test_sdist_is_streamed_and_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(_download, "_BLOCK_BYTES", 100)
    monkeypatch.setattr(_download, "_REPORT_BYTES", 500)
    data, messages = bytes(range(256)) * 4, []
    commands = sdist_at(tmp_path, monkeypatch, data)

    def report(*step):
        messages.append(step)

    path = fetch_sdist("tool", "1.0", sha256(data), tmp_path / "out", progress=report)
    assert path == tmp_path / "out" / "tool-1.0.tar.gz"
    assert path.read_bytes() == data
    assert len(messages) == 2
    # Allowing sources would make pip run the archive's set-up code.
    assert all(command[command.index("--only-binary") + 1] == ":all:" for command in commands)


@pytest.mark.parametrize("reason", ["expected", "larger"])
def test_bad_sdist_leaves_nothing(tmp_path, monkeypatch, reason):
    sdist_at(tmp_path, monkeypatch, b"x" * 1000)
    if reason == "larger":
        monkeypatch.setattr(_download, "SIZE_LIMIT_BYTES", 999)
    with pytest.raises(FetchError, match=reason):
        fetch_sdist("tool", "1.0", "0" * 64, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_unknown_sdist_says_what_pip_said(tmp_path, monkeypatch):
    fake_pip(
        monkeypatch, stderr="ERROR: No matching distribution found for tool==2\n  trace", code=1
    )
    with pytest.raises(FetchError, match=r"tool 2: ERROR: No matching distribution found"):
        fetch_sdist("tool", "2", "0" * 64, tmp_path)


def test_strange_addresses_are_refused(tmp_path, monkeypatch):
    fake_pip(
        monkeypatch, stdout="No sources permitted for tool: ftp://x.example/tool-1.0.zip (from"
    )
    monkeypatch.setattr(urllib.request, "urlopen", lambda *a, **k: pytest.fail("opened"))
    with pytest.raises(FetchError, match="ftp"):
        fetch_sdist("tool", "1.0", "0" * 64, tmp_path)


@pytest.mark.network
def test_a_real_sdist(tmp_path):
    pinned = "2d91e135bf72d31a410b17c16da610a82cb55f6b0477d1a902134b24a455b8b3"
    try:
        path = fetch_sdist("iniconfig", "2.0.0", pinned, tmp_path)
    except FetchError as error:
        pytest.skip(f"no package registry within reach: {error}")
    assert sha256_of(path) == pinned
