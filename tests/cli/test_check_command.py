import json
import shutil

import pytest
import typer
from typer.testing import CliRunner

from recap.cli.data import check_command


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(check_command)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_sound_data_sets(run, domains):
    result = run(domains[0].root.parent)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("Brain  (benchmark layout)")
    assert "  pool   3 normal, 3 abnormal, 3 masks" in lines
    assert "  sizes  10 of 70x70" in lines
    assert lines.count("  no problems found") == 2


def test_problems_are_named_and_counted(run, domains, tmp_path):
    root = tmp_path / "Brain_AD"
    shutil.copytree(domains[0].root, root)
    good = sorted((root / "test/good/img").iterdir())[0]
    for number in range(7):
        shutil.copy(good, good.with_name(f"copy{number}.png"))
    next((root / "test/Ungood/anomaly_mask").iterdir()).unlink()
    result = run(root, "--json", tmp_path / "out/report.json", "--show", 2)
    assert result.exit_code == 1
    assert "  duplicate: 7\n" in result.stdout
    assert result.stdout.count("has the bytes of") == 2
    assert "… and 5 more (--json)" in result.stdout
    assert "  image without mask: 1\n" in result.stdout
    content = json.loads((tmp_path / "out/report.json").read_text())
    assert content["problems"] == 8
    kinds = [problem["kind"] for problem in content["data"][0]["problems"]]
    assert kinds.count("duplicate") == 7


def test_what_is_no_data_set(run, tmp_path):
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "unknown layout" in result.stdout
    assert "normal/, abnormal/" in result.stdout


def test_further_folders_are_shown_and_checked(run, domains, tmp_path):
    good = sorted((domains[0].root / "valid/good/img").iterdir())
    for folder, file in (("normal", good[0]), ("more-normal", good[1])):
        (tmp_path / folder).mkdir()
        shutil.copy(file, tmp_path / folder)
    (tmp_path / "notes.txt").touch()
    result = run(tmp_path)
    assert result.exit_code == 0
    assert "  more   1 image in more-normal/, checked alike\n" in result.stdout
    assert "  unused 1 file in ./\n" in result.stdout
    (tmp_path / "more-normal" / "bad.png").write_bytes(b"nothing")
    result = run(tmp_path)
    assert result.exit_code == 1
    assert f"{tmp_path / 'more-normal' / 'bad.png'}: " in result.stdout
