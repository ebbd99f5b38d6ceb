"""A detector on an encoder of two tiny blocks, and its exported graphs: made once, then read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recap
from quick_encoder import encoder_read_once  # noqa: F401
from recap.config import Settings
from recap.data import write_phantoms
from recap.data.benchmark import Domain
from recap.methods.registry import resolve_settings
from recap.scoring.detector import Detector

PX = 56  # a grid of 4 × 4 patches of 14 px


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A random DINOv2 of as few operations as can be: tracing takes its time by each of them."""
    import torch
    import transformers

    config = transformers.Dinov2Config(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        patch_size=14,
        image_size=PX,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = transformers.Dinov2Model(config).eval()
    folder = tmp_path_factory.mktemp("small") / "encoder"
    model.save_pretrained(folder, safe_serialization=True)
    return folder


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> list[Domain]:
    root = tmp_path_factory.mktemp("phantoms")
    return write_phantoms(root, pool=2, test=2, size_px=PX, domains=["Brain", "Chest"])


@pytest.fixture(scope="session")
def small_settings(small_folder: Path) -> Callable[..., Settings]:
    """small_settings(preset, **sections): one epoch, without copies."""

    def make(preset: str = "fast", **sections: Any) -> Settings:
        encoder = {"name": str(small_folder), "input_px": PX, "layers": (1, 2)}
        training = {"epochs": 1, "augment": False}
        return resolve_settings(preset, encoder=encoder, training=training, **sections)

    return make


def fit_on(domain: Domain, settings: Settings, abnormal: bool = True) -> Detector:
    valid = domain.root / "valid"
    diseased = valid / "Ungood" / "img" if abnormal else None
    return recap.fit(valid / "good" / "img", diseased, settings=settings)


@pytest.fixture(scope="session")
def saved(
    tmp_path_factory: pytest.TempPathFactory,
    phantoms: list[Domain],
    small_settings: Callable[..., Settings],
) -> Path:
    """A few-shot bundle without graphs; not to be changed."""
    path = tmp_path_factory.mktemp("bundles") / "plain.recap"
    fit_on(phantoms[0], small_settings()).save(path)
    return path


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, saved: Path) -> Path:
    """The same with both float graphs; not to be changed."""
    import shutil

    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    pytest.importorskip("openvino", reason="the extra openvino is not installed")
    from recap.runtime.export import export_bundle

    path = tmp_path_factory.mktemp("exported") / "graphs.recap"
    shutil.copytree(saved, path)
    for target in ("onnx", "openvino"):
        export_bundle(recap.load(path), path, target)
    return path


@pytest.fixture
def pictures() -> list[np.ndarray]:
    """Three images of different shapes, grey and RGB."""
    rng = np.random.default_rng(0)
    return [
        rng.random((56, 56)).astype(np.float32),
        rng.integers(0, 256, (33, 91, 3), np.uint8),
        rng.integers(0, 65536, (64, 128), np.uint16),
    ]
