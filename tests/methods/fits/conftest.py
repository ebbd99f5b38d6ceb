"""Tiny settings, tiny images, and ways to watch a fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quick_encoder import encoder_read_once  # noqa: F401
from recap.config import Settings
from recap.data import write_phantoms
from recap.data.benchmark import Domain
from recap.methods.registry import resolve_settings

MakeSettings = Callable[..., Settings]


@pytest.fixture
def tiny_settings(tiny_folder: Path) -> MakeSettings:
    """tiny_settings(preset, **sections): two epochs on the tiny encoder, without copies."""

    def make(preset: str = "fast", **sections: Any) -> Settings:
        encoder = {"name": str(tiny_folder), "input_px": 70, **sections.pop("encoder", {})}
        training = {"epochs": 2, "augment": False, **sections.pop("training", {})}
        return resolve_settings(preset, encoder=encoder, training=training, **sections)

    return make


def picture(seed: int) -> np.ndarray:
    """A grey image of soft stripes, 70 × 70."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:70, :70] / 70
    waves = np.sin(6 * rows + seed) * np.cos(5 * columns) + 0.2 * rng.standard_normal((70, 70))
    return np.clip(0.4 + 0.15 * waves, 0, 1).astype(np.float32)


@pytest.fixture
def arrays() -> dict[str, list[np.ndarray]]:
    """Three normal images, two with a bright square, and the masks of the squares."""
    normal, abnormal = [picture(i) for i in range(3)], [picture(i) for i in (3, 4)]
    masks = [np.zeros((70, 70), bool) for _ in abnormal]
    for index, (image, mask) in enumerate(zip(abnormal, masks, strict=True)):
        corner = 10 + 25 * index
        image[corner : corner + 20, corner : corner + 20] = 1
        mask[corner : corner + 20, corner : corner + 20] = True
    return {"normal": normal, "abnormal": abnormal, "masks": masks}


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> list[Domain]:
    """Three domains of 2 + 2 images in pool and test; Chest has no masks."""
    root = tmp_path_factory.mktemp("phantoms")
    return write_phantoms(root, pool=2, test=2, size_px=70, domains=["Brain", "Liver", "Chest"])


@pytest.fixture
def bytes_of(tmp_path: Path) -> Callable[[Any], dict[str, bytes]]:
    """Save a detector and read its files back as bytes."""

    def save(detector: Any) -> dict[str, bytes]:
        folder = tmp_path / f"bundle-{len(list(tmp_path.iterdir()))}"
        detector.save(folder)
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}

    return save


@pytest.fixture
def count_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], list[Any]]:
    """count_calls(owner, name): from now on, a list that grows by the arguments of each call."""

    def watch(owner: Any, name: str) -> list[Any]:
        original, calls = getattr(owner, name), []

        def counted(*args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)
        return calls

    return watch
