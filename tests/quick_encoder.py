"""For folders of tests that fit dozens of detectors on one tiny encoder."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_models: dict[Any, Any] = {}


@pytest.fixture(scope="module", autouse=True)
def encoder_read_once() -> Iterator[None]:
    """An unchanged encoder is read from disk once, then copied: half the time of a tiny fit."""
    from recap.encoders import load

    original = load._saved_model

    def saved_model(folder: Path, name: str) -> Any:
        stat = (folder / "model.safetensors").stat()
        key = (folder, name, stat.st_mtime_ns, stat.st_size)
        if key not in _models:
            _models[key] = original(folder, name)
        return copy.deepcopy(_models[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_saved_model", saved_model)
        yield
