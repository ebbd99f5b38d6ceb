"""For folders of tests that fit dozens of detectors on one tiny encoder."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_models: dict[Any, Any] = {}


def copied(module: Any) -> Any:
    """A module with weights of its own, in a quarter of the time of `copy.deepcopy`.

    What tests never change is shared, above all its configuration.
    """
    twin = object.__new__(type(module))
    twin.__dict__ = {
        name: value.copy() if isinstance(value, (dict, set)) else value
        for name, value in vars(module).items()
    }
    for tensors in (twin._parameters, twin._buffers):
        for name, tensor in tensors.items():
            tensors[name] = copy.deepcopy(tensor)
    for name, child in twin._modules.items():
        twin._modules[name] = None if child is None else copied(child)
    return twin


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
        model, normalisation = _models[key]
        return copied(model), normalisation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_saved_model", saved_model)
        yield
