"""Whole files, locks, scratch folders and tokens."""

import errno
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from recap._files import (
    alone,
    check_file,
    check_place,
    error_message,
    locked,
    read_token,
    scratch_folder,
    write_atomic,
)
from recap.errors import InputError, SettingsError, is_full


def refused(action):
    with pytest.raises(OSError, match="Errno") as caught:
        action()
    return error_message(caught.value)


def test_whole_files(tmp_path):
    write_atomic(tmp_path / "new" / "a.txt", "é")
    assert (tmp_path / "new" / "a.txt").read_bytes() == "é".encode()
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["a.txt"]


def test_what_must_outlive_a_power_cut_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, seen, put = tmp_path / "a", [], os.fsync

    def watched(handle):
        seen.append("named" if path.exists() else os.fstat(handle).st_size)
        put(handle)

    monkeypatch.setattr(os, "fsync", watched)
    write_atomic(path, "four", durable=True)
    assert seen == [4, "named"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "this is a folder, but a file is needed"),
        ("file/a.txt", "file is a file, but a folder is needed"),
        ("file/b/a.txt", "file is a file, but a folder is needed"),
        ("x" * 300, "the name is too long"),
    ],
)
def test_a_file_that_cannot_be_written_says_why(tmp_path, name, reason):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=rf"^Cannot write {tmp_path}.*: .*{reason}.*\. \w.*\.$"):
        write_atomic(tmp_path / name, "a")


def test_a_disk_that_can_only_be_read_says_so(tmp_path, monkeypatch):
    """It refuses to remove a file even where there is none."""

    def refuse(path, *_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(InputError, match=r"a\.txt: this disk can only be read"):
        write_atomic(tmp_path / "a.txt", "a")


@pytest.mark.parametrize("name", ["", "file/a.txt", "file/b/a.txt"])
def test_it_can_be_known_before(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Cannot write"):
        check_file(tmp_path / name)


def test_a_good_place_is_left_as_it_is(tmp_path):
    check_file(tmp_path / "new" / "a.txt")
    check_place(tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission_can_be_known_before(tmp_path):
    (tmp_path / "shut").mkdir(mode=0o500)
    with pytest.raises(InputError, match="no permission"):
        check_file(tmp_path / "shut" / "a.txt")


def test_what_the_system_says_in_words(tmp_path):
    file = tmp_path / "file"
    file.touch()
    folder = f"{file} is a file, but a folder is needed. Choose another place"
    assert refused(lambda: file.mkdir(exist_ok=True)).startswith(f"Cannot use {file}: {folder}")
    below = file / "x" / "y"
    assert refused(lambda: below.mkdir(parents=True)).startswith(f"Cannot use {below}: {folder}")
    assert "it exists already" in refused(tmp_path.mkdir)
    assert "there is no such file" in refused((tmp_path / "none").read_bytes)


def test_no_text_is_a_bare_number(tmp_path):
    for number in errno.errorcode:
        assert "[Errno" not in error_message(OSError(number, os.strerror(number), str(tmp_path)))


def test_errors_without_a_file_keep_their_words():
    assert "the disk is full. Make room" in error_message(OSError(errno.ENOSPC, "No space left"))
    assert error_message(OSError("urlopen error")) == "urlopen error"


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_link_that_leads_nowhere_is_no_place_for_a_folder(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("gone")
    with pytest.raises(InputError, match="link is a link that leads nowhere"):
        check_place(link)
    assert "is a link that leads nowhere" in refused(lambda: link.mkdir(exist_ok=True))
    check_file(link)  # a file takes the place of the link
    write_atomic(link, "text")
    assert link.read_text() == "text"


def test_a_full_disk_is_known_by_its_number_not_by_a_text_that_may_quote_a_file():
    full = OSError(errno.ENOSPC, "No space left on device")
    assert is_full(full)
    told = InputError("a.png: cannot be written.")
    told.__cause__ = full
    assert is_full(told)
    assert not is_full(OSError(errno.EFBIG, "File too large"))
    assert not is_full(InputError("scan (os error 28): damaged."))


def test_the_second_waits_for_the_first(tmp_path):
    order = []

    def second():
        with locked(tmp_path / "new" / ".lock"):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(tmp_path / "new" / ".lock"):
        thread.start()
        thread.join(0.3)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_an_error_lets_go_of_it(tmp_path):
    with pytest.raises(OSError, match="full"), locked(tmp_path / ".lock"):
        raise OSError("the disk is full")
    with locked(tmp_path / ".lock"):
        pass


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    lock, told = (
        locked(tmp_path / "file" / "out" / ".lock"),
        r"Cannot write .*file.*Choose a folder",
    )
    with pytest.raises(InputError, match=told), lock:
        pass


@pytest.mark.skipif(os.name != "posix", reason="needs locks of the system")
def test_a_run_that_is_not_alone_is_refused(tmp_path):
    lock = tmp_path / ".lock"
    with (
        alone(lock),
        pytest.raises(InputError, match="is being written by another run"),
        alone(lock),
    ):
        raise AssertionError
    assert not lock.exists()
    lock.touch()  # left by a kill
    with alone(lock):
        assert lock.exists()


def test_the_file_of_a_run_that_just_ended_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    lock, original, ended = tmp_path / ".lock", fcntl.flock, []

    def flock(file, how):
        if not ended:  # the other run ends between our opening of its file and our locking it
            ended.append(lock.unlink())
        original(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with alone(lock):
        assert lock.exists()
        with pytest.raises(InputError, match="another run"), alone(lock):
            raise AssertionError


def test_disks_without_locks_are_written_all_the_same(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with alone(tmp_path / ".lock"), alone(tmp_path / ".lock"):
        pass


_RUN = """
import os, signal, sys, tempfile
from recap._files import scratch_folder
tempfile.tempdir = sys.argv[1]
with scratch_folder() as folder:
    (folder / "patient.dcm").write_text("image")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where such folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_goes_with_the_run(place):
    with scratch_folder() as folder:
        (folder / "patient.dcm").write_text("image")
        assert folder.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(ValueError, match="damaged"), scratch_folder() as folder:
        raise ValueError("damaged")
    assert list(place.iterdir()) == []


def test_what_a_killed_run_left_goes_with_the_next(place):
    subprocess.run([sys.executable, "-c", _RUN, place], check=False, timeout=120)
    assert list(place.rglob("patient.dcm"))
    with scratch_folder() as folder:
        assert list(place.iterdir()) == [folder.parent]


def test_that_of_a_run_beside_it_stays(place):
    with scratch_folder() as first, scratch_folder() as second:
        assert {first.parent, second.parent} == set(place.iterdir())


def test_one_that_was_taken_for_abandoned_is_made_anew(place, monkeypatch):
    made, mkdtemp = [], tempfile.mkdtemp

    def swept_at_once(*args):
        made.append(mkdtemp(*args))
        if len(made) == 1:
            with scratch_folder():  # another run, before the lock is taken
                pass
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept_at_once)
    with scratch_folder() as folder:
        assert [str(folder.parent)] == made[2:]
        assert folder.is_dir()


def test_other_folders_stay(place):
    kept = place / "recap-results"
    kept.mkdir()
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    link = place / "recap-unpacked-link"
    link.symlink_to(elsewhere)
    with scratch_folder():
        assert kept.is_dir()
        assert elsewhere.is_dir()
        assert link.is_symlink()


def test_a_token_is_the_only_line_of_a_file(tmp_path):
    (tmp_path / "token").write_text(" ey.J0-e_n\n")
    assert read_token(tmp_path / "token") == "ey.J0-e_n"
    with pytest.raises(SettingsError, match=r"at least 16 letters.* has 9 characters in 1 lines"):
        read_token(tmp_path / "token", shortest=16)


@pytest.mark.parametrize("content", [b"", b"\n", b"se cret", b"secret\nsecret", "sécret".encode()])
def test_what_is_no_token_is_refused_without_being_quoted(content, tmp_path):
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(SettingsError, match="token: a token is one line") as told:
        read_token(tmp_path / "token")
    assert "cret" not in str(told.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(SettingsError, match="Cannot read the token file"):
        read_token(tmp_path / "nowhere")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="Cannot read the token file"):
        read_token(tmp_path / "bytes")
