import subprocess
import sys
import tempfile

import pytest

from recap.scratch import scratch_folder

_RUN = """
import os, signal, sys, tempfile
from recap.scratch import scratch_folder
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
        assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(ValueError, match="damaged"), scratch_folder() as folder:
        raise ValueError("damaged")
    assert list(place.iterdir()) == []


def test_what_a_killed_run_left_goes_with_the_next(place):
    subprocess.run([sys.executable, "-c", _RUN, place], check=False, timeout=120)
    assert list(place.rglob("patient.dcm"))
    with scratch_folder() as folder:
        assert list(place.iterdir()) == [folder]


def test_that_of_a_run_beside_it_stays(place):
    with scratch_folder() as first, scratch_folder() as second:
        assert {first, second} == set(place.iterdir())


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
        assert [str(folder)] == made[2:]
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
