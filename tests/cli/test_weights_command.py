import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from recap.cli.weights import app
from recap.encoders.registry import ENCODERS
from recap.errors import RecapError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "cache"


@pytest.fixture
def encoder(tmp_path):
    """A folder with a model of one layer."""
    folder = tmp_path / "knee-vit"
    folder.mkdir()
    tensors = {
        "embeddings.patch_embeddings.projection.weight": np.zeros((4, 3, 2, 2), np.float32),
        "encoder.layer.0.norm1.weight": np.ones(4, np.float32),
    }
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "vit", "hidden_size": 4, "num_hidden_layers": 1, "patch_size": 2}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_list_shows_every_name_in_full(cache):
    result = run("list")
    assert result.exit_code == 0
    for name in ENCODERS:
        assert name in result.stdout


def test_list_as_json_knows_what_is_here(cache, encoder):
    run("add", encoder)
    rows = {row["name"]: row for row in json.loads(run("list", "--json").stdout)}
    assert list(rows) == [*ENCODERS, "knee-vit"]
    assert rows["dinov2-small"]["present"] is None
    assert rows["dinov2-small"]["pinned"] is True
    assert rows["knee-vit"]["present"] == "cache"
    assert rows["knee-vit"]["size_bytes"] == (encoder / "model.safetensors").stat().st_size


def test_add_prints_the_folder_alone_on_stdout(cache, encoder):
    result = run("add", encoder, "--name", "ours")
    assert result.stdout.strip() == str(cache / "encoders" / "ours")
    assert "sha256" in result.stderr


def test_what_is_assumed_of_an_encoder_is_said(cache, encoder):
    assumed = "ours: no preprocessor_config.json says how pixels are normalised. Assumed"
    assert assumed in run("add", encoder, "--name", "ours").stderr
    assert assumed in run("pull", "ours").stderr


def test_pull_of_what_is_here_needs_no_network(cache, encoder):
    run("add", encoder, "--name", "lab/knee")
    result = run("pull", "lab/knee")
    assert result.stdout.strip() == str(cache / "encoders" / "lab--knee")
    assert "already here" in result.stderr


def test_errors_go_up_to_the_main_command(cache, tmp_path):
    result = run("add", tmp_path / "nothing.safetensors")
    assert isinstance(result.exception, RecapError)
    assert isinstance(run("pull", "dinov2-smal").exception, RecapError)


def test_verify_tells_by_its_exit_code(cache, encoder):
    assert run("verify").exit_code == 0
    run("add", encoder)
    good = run("verify")
    assert (good.exit_code, good.stdout.split()[:2]) == (0, ["ok", "knee-vit"])
    weights = cache / "encoders" / "knee-vit" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    bad = run("verify")
    assert (bad.exit_code, bad.stdout.split()[:2]) == (1, ["changed", "knee-vit"])
    assert json.loads(run("verify", "--json").stdout)[0]["status"] == "changed"


HEAVY = {"torch", "transformers", "huggingface_hub", "safetensors", "onnx"}


@pytest.mark.parametrize("module", ["recap.cli.weights", "recap.encoders.weights"])
def test_importing_loads_nothing_heavy(module):
    code = f"import sys, {module}; print(*({HEAVY!r} & sys.modules.keys()))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
