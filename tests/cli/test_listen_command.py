import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

pytest.importorskip("pynetdicom")
pytest.importorskip("highdicom")

from pacs_images import study
from pacs_peer import Archive, send

TO = ("--send-to", "PACS@127.0.0.1:104")
URL = ("--store-url", "http://127.0.0.1/")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "Say where results go"),
        ((*TO, "--store-url", "http://localhost/"), "Say where results go"),
        (("--send-to", "PACS"), "write AE@HOST:PORT"),
        ((*TO, "--store-token-file", "token"), "--store-token-file token is for"),
        ((*URL, "--store-token-file", "nowhere"), "Cannot read the token file nowhere"),
        ((*TO, "--host", "0.0.0.0"), "--calling"),
        ((*TO, "--ae-title", "A" * 17), "is no application entity title"),
        ((*TO, "--port", "70000"), "Port 70000 cannot be"),
    ],
)
def test_wrong_options_are_told_before_the_detector_is_loaded(command, tmp_path, options, said):
    result = command("listen", tmp_path / "no.recap", "--spool", tmp_path / "spool", *options)
    assert result.code == 2
    assert said in result.err
    assert not (tmp_path / "spool").exists()


# Without a detector, which would bring torch: whatever arrives fails, in good order.
WITHOUT_TORCH = """
import signal, sys, types
signal.signal(signal.SIGHUP, getattr(signal, sys.argv.pop(1)))
sys.modules["recap.runtime.choose"] = types.SimpleNamespace(load=lambda *_: None)
from recap.cli.main import main
main()
"""


@contextmanager
def listening(tmp_path, hangup):
    """A `recap listen` in a process of its own, and its port."""
    call = [sys.executable, "-c", WITHOUT_TORCH, hangup, "listen", tmp_path / "no.recap"]
    options = ["--spool", tmp_path / "spool", "--port", "0", "--quiet-seconds", "1", *TO]
    process = subprocess.Popen([*call, *options], stderr=subprocess.PIPE, text=True)
    try:
        said = process.stderr.readline()
        port = re.search(r"RECAP listens on 127\.0\.0\.1:(\d+)", said)
        assert port, said + process.stderr.read()
        yield process, int(port[1])
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.slow
def test_a_closed_terminal_ends_it_in_good_order(tmp_path):
    with listening(tmp_path, "SIG_DFL") as (process, _):
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_a_closed_terminal_does_not_end_it_under_nohup(tmp_path):
    with listening(tmp_path, "SIG_IGN") as (process, port):
        process.send_signal(signal.SIGHUP)
        assert send(port, study(1)) == [0, 0, 0]
        assert any("scoring" in line for line in process.stderr), "the log ended"


@pytest.mark.slow
def test_a_study_is_scored_and_sent(bundle, tmp_path):
    archive = Archive()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "recap", "listen", bundle, "--spool", tmp_path / "spool"),
            *("--port", "0", "--send-to", archive.address, "--quiet-seconds", "0.5"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = process.stderr.readline()
        port = re.search(r"RECAP listens on 127\.0\.0\.1:(\d+)", said)
        assert port, said + process.stderr.read()
        assert send(int(port[1]), study(1, slices=4, side=40)) == [0] * 4
        archive.wait_for(3, 120)  # map, report and at least one overlay
        line = ""
        while "done" not in line:
            line = process.stderr.readline()
            assert line, "the log ended"
            assert "Secret" not in line
            assert "HIDDEN" not in line
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        archive.server.shutdown()
    assert {uid for uid, _, _ in archive.received} == {study(1)[0].StudyInstanceUID}
