import os
import subprocess
import sys
from pathlib import Path

import pytest

import recap

COMMANDS = [
    [],
    ["fit"],
    ["score"],
    ["evaluate"],
    ["info"],
    ["demo"],
    ["data"],
    ["data", "phantom"],
    ["weights"],
    ["weights", "pull"],
]


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_every_command_has_help(name, flag, command):
    result = command(*name, flag)
    assert result.code == 0
    assert result.out.startswith("Usage: ")
    assert " ".join(["recap", *name]) in result.out.splitlines()[0]


def test_help_names_every_command(command):
    text = command("--help").out
    for name in ("fit", "score", "evaluate", "info", "demo", "data", "weights"):
        assert f"  {name} " in text
    assert "Research use only" in " ".join(text.split())


@pytest.mark.parametrize("name", [[], ["data"], ["weights"], ["bench"]], ids=" ".join)
def test_what_a_command_does_is_said_whole_in_80_columns(name, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    listed = command(*name, "--help").out.partition("Commands:")[2]
    assert listed.strip()
    assert "..." not in listed


@pytest.mark.parametrize(
    ("name", "default"),
    [("run", "recap"), ("speed", "recap"), ("ablate", "fast"), ("sweep", "fast")],
)
def test_presets_of_the_benchmark_are_our_own(name, default, command):
    """Those of other methods are for --peer-preset alone."""
    text = " ".join(command("bench", name, "--help").out.split())
    said = text.partition("--preset ")[2].partition(" --")[0]
    assert f"{default} (default)" in said
    assert "official" not in said


@pytest.mark.parametrize("name", [["evaluate"], ["data", "check"]], ids=" ".join)
def test_json_takes_a_file_where_it_does(name, command):
    assert "--json FILE" in command(*name, "--help").out


def test_the_version(command):
    assert command("--version").out == f"recap {recap.__version__}\n"


def test_help_is_instant():
    """Its own time, best of five: the machine may be busy, the program may not be slow."""
    script = Path(sys.executable).with_name("recap")
    if not script.exists():
        pytest.skip("the recap command is not installed beside this Python")
    times = []
    for _ in range(5):
        before = os.times()
        subprocess.run([script, "--help"], check=True, capture_output=True)
        after = os.times()
        times.append(sum(after[2:4]) - sum(before[2:4]))  # of children, theirs and the system's
    assert min(times) < 0.5


def test_the_command_line_loads_nothing_heavy():
    heavy = {"torch", "transformers", "numpy", "pydantic", "PIL", "rich.progress"}
    code = f"import sys, recap, recap.cli.main; print(*({heavy!r} & sys.modules.keys()))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []


def test_python_dash_m_is_the_command():
    call = [sys.executable, "-m", "recap"]
    good = subprocess.run([*call, "--help"], capture_output=True, text=True, check=True)
    assert good.stdout.startswith("Usage: ")
    bad = subprocess.run([*call, "info", "no.recap"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert bad.stdout == ""
    assert bad.stderr.startswith("recap: error: ")
    assert "Traceback" not in bad.stderr


def test_no_arguments_show_help(command):
    result = command()
    assert "Usage: " in result.out + result.err


@pytest.mark.parametrize("name", ["file", "file/x"])
def test_a_file_in_the_way_is_told_in_words(name, command, tmp_path):
    (tmp_path / "file").touch()
    result = command("data", "phantom", tmp_path / name)
    assert result.code == 2
    assert f"{tmp_path / 'file'} is a file, but a folder is needed. Choose" in result.err
    assert "Errno" not in result.err


def test_bench_lists_its_commands_in_the_order_of_use(command):
    listed = command("bench", "--help").out.partition("Commands:")[2].splitlines()
    names = [line.split()[0] for line in listed if line[:2] == "  " and line[2:3].strip()]
    order = ["run", "table", "compare", "ablate", "sweep", "speed", "figures", "pack"]
    assert names == order
