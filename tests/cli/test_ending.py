"""Signals come for real, to a command in a process of its own that has unpacked something."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys, tempfile
from pathlib import Path
from recap.cli import main as module

def unpack():
    with tempfile.TemporaryDirectory() as folder:
        for image in range(100):
            Path(folder, f"patient-{image}.png").write_bytes(b"")
        os.unlink = remove
        print(folder, flush=True)
        os.kill(os.getpid(), number)
        print("went on")

def remove(*arguments, unlink=os.unlink, **options):
    for again in map(int, sys.argv[3:]):
        os.kill(os.getpid(), again)
    unlink(*arguments, **options)

number = int(sys.argv[1])
signal.signal(number, getattr(signal, sys.argv[2]))
module.app = unpack
module.main()
"""


def run_with(number, disposition, *again):
    """A signal while the command is at work, and others with each image that it then removes."""
    call = [sys.executable, "-c", SCRIPT, str(int(number)), disposition, *map(str, map(int, again))]
    return subprocess.run(call, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("again", [(), (signal.SIGTERM, signal.SIGHUP)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_was_unpacked_is_removed(number, again):
    """Closed terminals send two signals, and so do wrappers that pass theirs on to a group."""
    run = run_with(number, "SIG_DFL", *again)
    assert run.returncode == 128 + number
    assert f"recap: ended by {number.name}. Run the same command again" in run.stderr
    (folder,) = run.stdout.splitlines()
    assert not Path(folder).exists()


def test_a_signal_that_is_ignored_stays_so():
    """As nohup has it."""
    run = run_with(signal.SIGHUP, "SIG_IGN")
    assert run.returncode == 0
    assert run.stdout.splitlines()[1] == "went on"
