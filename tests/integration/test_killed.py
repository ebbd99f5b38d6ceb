"""A fit that dies without warning goes on when the same command is run again."""

import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow


def files(bundle):
    return {path.name: path.read_bytes() for path in bundle.iterdir()}


def test_a_killed_fit_ends_with_the_same_bytes(command, offline, brain, tiny_folder, tmp_path):
    valid = brain.root / "valid"
    fit = ["fit", "--normal", valid / "good", "--abnormal", valid / "Ungood" / "img",
           "--encoder", tiny_folder]  # fmt: skip
    for setting in ("encoder.input_px=70", "training.epochs=6"):
        fit += ["--set", setting]
    out, work = tmp_path / "killed", tmp_path / "killed.partial"
    doomed = [sys.executable, "-m", "recap", *map(str, fit), "--out", str(out)]
    process = subprocess.Popen(doomed, env=offline, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (work / "tokens.json").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert not out.exists()
    assert work.exists()
    resumed = command(*fit, "--out", out)
    assert resumed.code == 0, resumed.err
    whole = command(*fit, "--out", tmp_path / "whole")
    assert whole.code == 0, whole.err
    assert files(out) == files(tmp_path / "whole")
    assert not work.exists()
