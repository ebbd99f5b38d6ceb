"""Kill -9 in the middle: every study's results arrive, and each result is one object."""

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pynetdicom")
pytest.importorskip("highdicom")

from pacs_images import RESULTS, study
from pacs_peer import send

SCRIPT = Path(__file__).parents[1] / "pacs_process.py"


@contextlib.contextmanager
def listener(spool, archive, delay=0.0, quiet=0.3):
    """A listener process and its port; killed without warning at the end."""
    process = subprocess.Popen(
        [sys.executable, SCRIPT, spool, archive.address, str(delay), str(quiet)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def wait_until_done(spool, seconds=120):
    end = time.monotonic() + seconds
    while any((spool / "work").iterdir()) or any((spool / "incoming").iterdir()):
        assert time.monotonic() < end, "the spool did not empty"
        time.sleep(0.1)


def check(archive, studies):
    """All results of all studies; a repeat is the same object to the last byte."""
    objects = set(archive.received)
    assert len({instance for _, instance, _ in objects}) == len(objects)
    per_study = Counter(study for study, _, _ in objects)
    assert per_study == {images[0].StudyInstanceUID: RESULTS for images in studies}
    return len(archive.received) - len(objects)


@pytest.mark.slow
def test_killed_while_scoring(tmp_path, archive):
    images = study(1)
    with listener(tmp_path, archive, delay=60) as (process, port):
        assert send(port, images) == [0, 0, 0]
        assert process.stdout.readline() == "scoring\n"
        time.sleep(0.5)
    assert archive.received == []
    with listener(tmp_path, archive):
        wait_until_done(tmp_path)
    assert check(archive, [images]) == 0


@pytest.mark.slow
def test_killed_while_a_study_arrives(tmp_path, archive):
    images = study(2, slices=6)
    with listener(tmp_path, archive, quiet=3) as (_, port):
        assert send(port, images[:3]) == [0, 0, 0]
    with listener(tmp_path, archive, quiet=3) as (_, port):
        assert send(port, images[3:]) == [0, 0, 0]
        wait_until_done(tmp_path)
    assert check(archive, [images]) == 0


@pytest.mark.slow
def test_killed_while_sending(tmp_path, archive):
    """The archive answers slowly; what it got before the kill is known to have been sent."""
    images = study(3)
    archive.pause_s = 0.5
    with listener(tmp_path, archive) as (_, port):
        send(port, images)
        archive.wait_for(2)
    with listener(tmp_path, archive):
        wait_until_done(tmp_path)
    # The result in flight is the only one that may come again.
    assert check(archive, [images]) <= 1


@pytest.mark.slow
def test_killed_again_and_again(tmp_path, archive):
    studies = [study(number) for number in range(10, 13)]
    waiting = list(studies)
    repeats_allowed = 0
    for life_s in (0.6, 1.7, 2.9):
        with listener(tmp_path, archive, delay=0.2) as (_, port):
            if waiting and send(port, waiting[0]) == [0, 0, 0]:
                waiting.pop(0)
            time.sleep(life_s)
        repeats_allowed += 1
    with listener(tmp_path, archive) as (_, port):
        for images in waiting:
            assert send(port, images) == [0, 0, 0]
        wait_until_done(tmp_path)
    assert check(archive, studies) <= repeats_allowed
