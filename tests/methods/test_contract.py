"""Every method keeps what recap promises of every method; the check sees where one does not."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recap.methods import patchcore
from recap.methods.base import Output
from recap.methods.registry import METHODS
from recap.testing import ContractError, check_method

SHORT = {
    "recap": {"training": {"epochs": 1, "augment": False}},
    "visualad": {"options": {"epochs": 1}},
    "uniadet": {"options": {"epochs": 1}},
    "april_gan": {"options": {"epochs": 1}},
    "mediclip": {"options": {"epochs": 1, "variants": 1}},
    "mvfa": {"options": {"epochs": 1, "batch_size": 22}},
    "madclip": {"options": {"epochs": 1, "copies": 1}},
    "dra": {"options": {"epochs": 1, "steps": 1, "copies": False}},
}
SEES_NO_DOT = ("anomalydino", "visualad", "uniadet", "april_gan", "mediclip", "madclip", "dra")
"""After a single step; that their maps line up is tested with each."""
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mine"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_the_contract(method, tiny_folder, tiny_clip_folder, resnet_folder):
    row = METHODS[method]
    encoder = resnet_folder if row.backbone else tiny_clip_folder if row.uses_text else tiny_folder
    settings = dict(SHORT.get(row.family, {}))
    if row.backbone:
        settings["encoder"] = {"input_px": 96}
    check_method(method, encoder=encoder, settings=settings, finds_a_dot=method not in SEES_NO_DOT)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda model, out: Output(out.score + torch.rand(1), out.map), "same|among others|loaded"),
        (lambda model, out: Output(out.score - out.score.mean(), out.map), "batch"),
        (lambda model, out: Output(out.score, out.map.flip(-1)), "does not follow"),
        (lambda model, out: Output(out.score, out.map[:, ::2]), "map of"),
    ],
    ids=["noise", "the batch's mean", "mirrored maps", "maps of another size"],
)
def test_a_broken_method_is_told(spoil, said, tiny_folder, monkeypatch):
    forward = patchcore.PatchCore.forward
    monkeypatch.setattr(
        patchcore.PatchCore, "forward", lambda self, pixels: spoil(self, forward(self, pixels))
    )
    with pytest.raises((ContractError, ValueError), match=said):
        check_method("patchcore", encoder=tiny_folder)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The example as a package that is installed in a place of its own."""
    place = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(EXAMPLE, place / "source")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(place), str(source)], check=True)
    path = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def run(environment, *arguments):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_example_is_a_method_like_any_other(installed, tiny_folder, tmp_path, phantoms):
    checked = run(installed, "-c", "from recap.testing import check_method; check_method('mine')")
    assert checked.returncode == 0, checked.stderr
    good = phantoms[0].root / "valid" / "good" / "img"
    encoder = ("--encoder", tiny_folder, "--set", "encoder.input_px=70")
    bundle = tmp_path / "mine.recap"
    fit = ("-m", "recap", "fit", "--method", "mine", "--normal", good, "--out", bundle, *encoder)
    fitted = run(installed, *fit)
    assert fitted.returncode == 0, fitted.stderr
    scored = run(installed, "-m", "recap", "score", bundle, good, "--out", tmp_path / "scored")
    assert scored.returncode == 0, scored.stderr
    grid = ("bench", "run", "--data", phantoms[0].root.parent, "--methods", "mine", "--shots", "2")
    ran = run(installed, "-m", "recap", *grid, "--out", tmp_path / "runs", *encoder)
    assert ran.returncode == 0, ran.stderr
    info = run(installed, "-m", "recap", "info", bundle, "--json")
    assert json.loads(info.stdout)["settings"]["options"] == {"top_share": 0.05}


def test_without_its_package_a_method_is_no_method():
    with pytest.raises(Exception, match="No method is called 'mine'"):
        check_method("mine")
