import errno
import os
import threading

import pytest

from recap.errors import InputError
from recap.lock import alone, locked


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
