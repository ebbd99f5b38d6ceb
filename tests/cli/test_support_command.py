import os

import pytest
import typer
from typer.testing import CliRunner

from recap.cli.data import support_command
from recap.data import draw_support, read_support
from recap.errors import RecapError


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(support_command)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_draw_is_saved_with_hashes(run, domains, tmp_path):
    out = tmp_path / "2-shot.txt"
    result = run(domains[0].root, "--shots", 2, "--draw", 3, "--out", out)
    assert result.exit_code == 0
    expected = draw_support(domains[0], 2, 3)
    assert read_support(domains[0], out) == expected
    assert (tmp_path / "2-shot.txt.json").exists()
    assert result.stdout.splitlines()[0] == f"normal {expected.normal[0].path}"
    again = run(domains[0].root, "--shots", 2, "--out", out)
    assert isinstance(again.exception, RecapError)


def test_names_that_are_not_utf8(run, tmp_path):
    for label in ("normal", "abnormal"):
        (tmp_path / label).mkdir()
        (tmp_path / label / os.fsdecode(b"caf\xe9.png")).write_text(label)
    result = run(tmp_path, "--shots", 1, "--out", tmp_path / "list.json")
    assert result.exit_code == 0, result.exception
    assert result.stdout.splitlines()[0].endswith(r"normal/caf\udce9.png")


def test_by_patient(run, tmp_path):
    rows = ["path,label,patient"]
    for label in ("normal", "abnormal"):
        for name, patient in (("a", "p1"), ("b", "p1"), ("c", "p1"), ("d", "p2")):
            (tmp_path / f"{label}-{name}.png").write_text(name)
            rows.append(f"{label}-{name}.png,{label},{patient}")
    (tmp_path / "knee.csv").write_text("\n".join(rows))
    out = tmp_path / "list.json"
    result = run(tmp_path / "knee.csv", "--shots", 2, "--by-patient", "--out", out)
    assert result.exit_code == 0
    assert result.stdout.count("-d.png") == 2


def test_unknown_patients(run, domains, tmp_path):
    options = ["--shots", 2, "--by-patient", "--out", tmp_path / "list.txt"]
    result = run(domains[0].root, *options)
    # Phantoms are nobody's; a change that names them must change this.
    assert "no patients are known" in str(result.exception)
    assert list(tmp_path.iterdir()) == []
