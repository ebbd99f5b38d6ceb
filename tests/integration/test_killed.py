"""A fit that dies without warning goes on when the same command is run again."""

import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow


def files(bundle):
    return {path.name: path.read_bytes() for path in bundle.iterdir()}


def test_a_killed_fit_ends_with_the_same_bytes(run_module, offline, brain, tiny_folder, tmp_path):
    valid = brain.root / "valid"
    fit = ["recap", "fit", "--normal", valid / "good", "--abnormal", valid / "Ungood" / "img",
           "--encoder", tiny_folder]  # fmt: skip
    for setting in ("encoder.input_px=70", "training.epochs=12"):
        fit += ["--set", setting]
    out, work = tmp_path / "killed", tmp_path / "killed.partial"
    command = [sys.executable, "-m", *map(str, fit), "--out", str(out)]
    process = subprocess.Popen(command, env=offline, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (work / "tokens.json").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert not out.exists()
    assert work.exists()
    resumed = run_module(*fit, "--out", out)
    assert resumed.returncode == 0, resumed.stderr
    whole = run_module(*fit, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    assert files(out) == files(tmp_path / "whole")
    assert not work.exists()
