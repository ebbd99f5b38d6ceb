"""Signals come for real, to a command that has unpacked something."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from recap.cli import main as module


class Unpacking:
    """A command that gets a signal while it has a scratch folder."""

    def __init__(self, number):
        self.number, self.went_on = number, False

    def __call__(self):
        with tempfile.TemporaryDirectory() as folder:
            self.unpacked = Path(folder) / "patient.png"
            self.unpacked.write_bytes(b"")
            os.kill(os.getpid(), self.number)
            self.went_on = True


@pytest.fixture
def disposed():
    """disposed(number, handler): what a signal finds when the command starts."""
    before = {}

    def dispose(number, handler):
        before[number] = signal.signal(number, handler)

    yield dispose
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_was_unpacked_is_removed(number, disposed, command, monkeypatch):
    disposed(number, signal.SIG_DFL)  # tests themselves may run under nohup
    unpacking = Unpacking(number)
    monkeypatch.setattr(module, "app", unpacking)
    result = command("score")
    assert result.code == 128 + number
    assert f"recap: ended by {number.name}. Run the same command again" in result.err
    assert not unpacking.went_on
    assert not unpacking.unpacked.parent.exists()
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_so(disposed, command, monkeypatch):
    disposed(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    unpacking = Unpacking(signal.SIGHUP)
    monkeypatch.setattr(module, "app", unpacking)
    assert command("score").code == 0
    assert unpacking.went_on
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
