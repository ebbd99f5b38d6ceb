import hashlib
import io
import zipfile

import pytest
import typer
from typer.testing import CliRunner

from file_server import serve
from recap.cli.data import pull_command
from recap.errors import RecapError


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(pull_command)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def site():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in ("Brain/valid/good/img/1.png", "Chest/test/good/2.png"):
            archive.writestr(name, name)
    with serve(content.getvalue()) as site:
        yield site


def test_a_checked_archive(run, site, tmp_path):
    digest = hashlib.sha256(site.data).hexdigest()
    options = ["--url", site.url, "--sha256", digest, "--name", "brain", "--name", "chest"]
    result = run("bmad", "--to", tmp_path, *options)
    assert result.exit_code == 0
    assert result.stdout.split() == [str(tmp_path / "Brain"), str(tmp_path / "Chest")]
    assert "CC BY-NC-SA" in result.stderr
    assert "as expected" in result.stderr


def test_an_unchecked_archive_is_said_to_be_one(run, site, tmp_path):
    result = run("bmad", "--to", tmp_path, "--url", site.url)
    assert result.exit_code == 0
    assert "NO checksum" in result.stderr
    assert "NOT CHECKED" in result.stderr


def test_a_wrong_archive(run, site, tmp_path):
    result = run("bmad", "--to", tmp_path, "--url", site.url, "--sha256", "0" * 64)
    assert isinstance(result.exception, RecapError)
    assert list(tmp_path.iterdir()) == []
