"""For folders of tests that fit dozens of detectors on one tiny encoder."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_models: dict[Any, Any] = {}


@pytest.fixture(scope="module", autouse=True)
def encoder_read_once() -> Iterator[None]:
    """An unchanged encoder is read from disk once: half the time of a tiny fit."""
    from recap.encoders import load

    original = load._saved_model

    def saved_model(folder: Path, name: str) -> Any:
        stat = (folder / "model.safetensors").stat()
        key = (folder, name, stat.st_mtime_ns, stat.st_size)
        if key not in _models:
            _models[key] = original(folder, name)
        model, normalisation = _models[key]
        # What an input size changes is copied; all else is frozen, and a copy takes its time.
        frozen = [m for name, m in model.named_children() if name != "embeddings"]
        shared = {id(part): part for part in [model.config, *frozen]}
        return copy.deepcopy(model, shared), normalisation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_saved_model", saved_model)
        yield
