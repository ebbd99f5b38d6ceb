import os
import shutil

import pytest
import typer
from typer.testing import CliRunner

from recap.cli.data import audit_command
from recap.data import find_domains, write_phantoms
from recap.data.supports import read_exclusions


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(audit_command)
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def root(tmp_path):
    write_phantoms(tmp_path / "data", pool=3, test=3, size_px=64, domains=["Brain", "Chest"])
    return tmp_path / "data"


def test_no_leaks(run, root, tmp_path):
    result = run(root, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "No leaks between pool and test." in result.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "audit.csv",
        "exclude.txt",
        "fingerprints.sqlite",
    ]


def test_leaks_are_the_exit_code(run, root, tmp_path):
    images = root / "Chest_AD" / "test" / "good" / "img"
    shutil.copy(images / "test_001.png", root / "Chest_AD/valid/good/img/copy.png")
    result = run(root, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "identical-file: 1" in result.stdout
    assert "\n1 leak\n" in result.stdout
    assert "Chest_AD/test/good/img/test_001.png" in (tmp_path / "out/exclude.txt").read_text()


def test_names_that_are_not_utf8(run, root, tmp_path):
    """They are no text for SQLite, nor for a table."""
    (domain,) = (d for d in find_domains(root) if d.name == "Chest")
    image = root / "Chest_AD" / "test" / "good" / "img" / os.fsdecode(b"caf\xe9.png")
    shutil.copy(image.with_name("test_001.png"), image)
    shutil.copy(image, root / "Chest_AD" / "valid" / "good" / "img" / image.name)
    for _ in range(2):  # the second from what the first has kept
        result = run(root, "--out", tmp_path / "out")
        assert (result.exit_code, result.exception.__class__) == (1, SystemExit), result.output
    assert r"test/good/img/caf\udce9.png" in (tmp_path / "out/audit.csv").read_text("utf-8")
    kept = read_exclusions(tmp_path / "out/exclude.txt").keep(domain.test(), domain)
    assert image not in [sample.path for sample in kept]
    assert len(kept) == 5


def test_patients_may_stay_in_the_test_split(run, root, tmp_path):
    for split, number in (("valid", 10), ("test", 90)):
        image = root / "Brain_AD" / split / "good" / "img" / f"{split}_000.png"
        image.rename(image.with_name(f"7_{number}.png"))
    listed = [
        (tmp_path / "out/exclude.txt").read_text()
        for options in ([], ["--no-patients"])
        if run(root, "--out", tmp_path / "out", *options).exit_code == 1
    ]
    assert ["7_90.png" in text for text in listed] == [True, False]


def test_the_exit_code_is_in_the_help(run):
    assert "exit code is 0 without leaks and 1 with leaks" in " ".join(run("--help").stdout.split())


def test_images_that_cannot_be_read_are_named(run, root, tmp_path):
    names = [f"bad{number}.png" for number in range(7)]
    for name in names:
        (root / "Chest_AD/test/good/img" / name).write_bytes(b"nothing")
    result = run(root, "--out", tmp_path / "out")
    assert "  unreadable: 7 (note)\n" in result.stdout
    assert result.stdout.count("    Chest_AD/test/good/img/bad") == 5
    assert "    Chest_AD/test/good/img/bad0.png: " in result.stdout
    assert "    … and 2 more (audit.csv)\n" in result.stdout
    table = (tmp_path / "out/audit.csv").read_text()
    assert all(f"Chest_AD/test/good/img/{name}" in table for name in names)
