import pytest
import typer
from typer.testing import CliRunner

from made_runs import made_cell, write_cell
from recap.cli.bench_report import figures_command, report_command

pytest.importorskip("matplotlib")


@pytest.fixture
def app():
    made = typer.Typer()
    made.command("figures")(figures_command)
    made.command("report")(report_command)
    return made


@pytest.fixture
def out(tmp_path):
    write_cell(tmp_path, made_cell("nearest", "Chest", 4, 0), maps=False)
    return tmp_path


def test_figures_are_written_beside_the_results(app, out):
    result = CliRunner().invoke(app, ["figures", str(out)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "Score distributions: 1\n" in result.stdout
    assert "Anomaly maps: none (no maps were kept" in result.stdout
    assert {file.name for file in (out / "figures").iterdir()} == {
        "scores-nearest.png",
        "scores-nearest.svg",
    }


def test_the_report_goes_where_it_is_told(app, out):
    file = out / "pages" / "all.html"
    result = CliRunner().invoke(app, ["report", str(out), "--to", str(file)])
    assert result.exit_code == 0
    assert result.stdout == f"Written: {file}\n"
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert not (out / "report.html").exists()
