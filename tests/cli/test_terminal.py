"""Progress on stderr, for people and for logs."""

import pytest

from recap.cli.terminal import bars, printable
from recap.errors import counted

HOSTILE = "a\x1b[2J\nScoring: 9/9\u202eb\udcff.png"
SHOWN = r"a\x1b[2J\nScoring: 9/9\u202eb\udcff.png"


def test_one_is_no_plural():
    assert [counted(n, "case") for n in (0, 1, 2)] == ["0 cases", "1 case", "2 cases"]


def test_names_cannot_command_a_terminal():
    assert printable(HOSTILE) == SHOWN
    assert printable("Schädel – 3 × 4.png") == "Schädel – 3 × 4.png"
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_shows_names_escaped(terminal, capsys, monkeypatch):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "200")
    with bars() as report:
        report("score", 1, 2, HOSTILE)
    shown = capsys.readouterr().err
    assert SHOWN in shown
    assert "\x1b[2J" not in shown
    if not terminal:
        assert shown == f"Scoring: 1/2 {SHOWN}\n"


def test_errors_show_names_escaped(command, tmp_path):
    result = command("info", tmp_path / "a\x1b[2Jb")
    assert result.code == 2
    assert r"a\x1b[2Jb" in result.err
    assert "\x1b" not in result.err
