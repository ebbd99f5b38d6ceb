"""One tiny detector of each kind, shared by all tests: score with them, change nothing."""

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
from recap.scoring.fit import fit_sources


@pytest.fixture(scope="session")
def tiny_settings(tiny_folder: Path) -> Callable[..., Settings]:
    """tiny_settings(preset, **sections): one epoch on the tiny encoder, without copies."""

    def make(preset: str = "fast", **sections: Any) -> Settings:
        encoder = {"name": str(tiny_folder), "input_px": 70, **sections.pop("encoder", {})}
        training = {"epochs": 1, "augment": False, **sections.pop("training", {})}
        return resolve_settings(preset, encoder=encoder, training=training, **sections)

    return make


@pytest.fixture(scope="session")
def domains(tmp_path_factory: pytest.TempPathFactory) -> list[Domain]:
    """Brain has masks, Chest has none; three images per class and split."""
    root = tmp_path_factory.mktemp("phantoms")
    return write_phantoms(root, pool=3, test=3, size_px=70, domains=["Brain", "Chest"])


def fit_on(
    domain: Domain, settings: Settings, abnormal: bool = True, masks: bool = True
) -> Detector:
    """Few-shot on the whole pool, without its masks, or on its normal images alone."""
    valid = domain.root / "valid"
    diseased = valid / "Ungood" / "img" if abnormal else None
    folder = valid / "Ungood" / "anomaly_mask"
    masks_given = folder if abnormal and masks and folder.is_dir() else None
    return recap.fit(valid / "good" / "img", diseased, masks_given, settings=settings)


@pytest.fixture(scope="session")
def few_shot(domains: list[Domain], tiny_settings: Callable[..., Settings]) -> Detector:
    return fit_on(domains[0], tiny_settings())


@pytest.fixture(scope="session")
def detectors(
    few_shot: Detector, domains: list[Domain], tiny_settings: Callable[..., Settings]
) -> dict[str, Detector]:
    return {
        "few-shot": few_shot,
        "write-back": fit_on(domains[0], tiny_settings("paper")),
        "normal-only": fit_on(domains[0], tiny_settings(), abnormal=False),
        "zero-shot": fit_sources(domains[1:], tiny_settings()),
        "taught by masks": fit_on(domains[0], tiny_settings("recap")),
        "taught by labels": fit_on(domains[0], tiny_settings("recap"), masks=False),
        "static": fit_on(domains[0], tiny_settings(model={"conditioning": "static"})),
        "shared anchors": fit_on(domains[0], tiny_settings(model={"conditioning": "tokens"})),
    }


@pytest.fixture
def pictures() -> list[np.ndarray]:
    """Five images of different shapes, grey and RGB, 8 bit and float."""
    rng = np.random.default_rng(0)
    return [
        rng.random((70, 70)).astype(np.float32),
        rng.integers(0, 256, (33, 91, 3), np.uint8),
        rng.integers(0, 256, (201, 57), np.uint8),
        rng.random((15, 15, 3)).astype(np.float32),
        rng.integers(0, 65536, (64, 128), np.uint16),
    ]
