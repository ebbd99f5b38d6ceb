"""Commands run in this process, as `recap` runs them: another would have to import torch anew."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """command("fit", "--out", path): exit code, stdout and stderr."""
    from recap.cli.main import main

    def run(*arguments: Any) -> Result:
        monkeypatch.setattr(sys, "argv", ["recap", *map(str, arguments)])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run
