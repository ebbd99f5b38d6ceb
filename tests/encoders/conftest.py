"""Tiny encoders on disk, and a machine whose caches are empty."""

import json

import huggingface_hub.constants  # noqa: F401  (reads HF_HUB_OFFLINE once, so before we set it)
import numpy as np
import pytest
from safetensors.numpy import save_file

from recap._download import sha256_of
from recap.encoders.registry import ENCODERS, IMAGENET, EncoderEntry

TINY = {"hidden_size": 8, "num_hidden_layers": 2, "patch_size": 4, "image_size": 8}


def _write_weights(path, *, width=8, depth=2, patch=4, prefix="", seed=0):
    """A file with the names and shapes of a tiny DINOv2."""
    rng = np.random.default_rng(seed)
    patches = rng.normal(size=(width, 3, patch, patch)).astype(np.float32)
    tensors = {f"{prefix}embeddings.patch_embeddings.projection.weight": patches}
    for layer in range(depth):
        tensors[f"{prefix}encoder.layer.{layer}.norm1.weight"] = np.ones(width, np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def _write_folder(folder, model_type="dinov2", **options):
    """An encoder folder as transformers would save it."""
    _write_weights(folder / "model.safetensors", **options)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **TINY}))
    return folder


@pytest.fixture(scope="session")
def write_weights():
    return _write_weights


@pytest.fixture(scope="session")
def write_folder():
    return _write_folder


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without weights and without a hub; gives its cache folder."""
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Make a tiny encoder part of the registry: named(pinned=…) gives its entry."""

    def register(name="tiny", *, pinned=True):
        file = _write_weights(tmp_path / "right" / "model.safetensors")
        entry = EncoderEntry(
            name=name,
            hub_id=f"lab/{name}",
            model_type="dinov2",
            config=TINY,
            mean=IMAGENET[0],
            std=IMAGENET[1],
            revision="a" * 40,
            sha256=sha256_of(file) if pinned else None,
            licence="MIT",
        )
        monkeypatch.setitem(ENCODERS, name, entry)
        return entry

    return register


@pytest.fixture
def right_file(tmp_path):
    """The file whose digest the tiny named encoder is pinned to."""
    return tmp_path / "right" / "model.safetensors"
