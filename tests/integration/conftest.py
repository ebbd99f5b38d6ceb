"""Whole commands in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from own_process import command  # noqa: F401
from recap.data import write_phantoms
from recap.data.benchmark import Domain

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def offline(tiny_folder: Path) -> dict[str, str]:
    """This environment on one thread, with no way out to a network."""
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **nowhere}


@pytest.fixture
def run_module(offline: dict[str, str]) -> Run:
    """run_module("recap", "fit", …): what `python -m recap fit …` does."""

    def run(*arguments: Any) -> "subprocess.CompletedProcess[str]":
        call = [sys.executable, "-m", *map(str, arguments)]
        return subprocess.run(
            call, env=offline, capture_output=True, text=True, check=False, timeout=240
        )

    return run


@pytest.fixture(scope="session")
def brain(tmp_path_factory: pytest.TempPathFactory) -> Domain:
    root = tmp_path_factory.mktemp("phantoms")
    return write_phantoms(root, pool=3, test=2, size_px=70, domains=["Brain"])[0]
