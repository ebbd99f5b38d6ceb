"""Models whose every parameter was moved away from its start, so that each one shows."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from recap.encoders.vit import Encoder
from recap.methods.recap.head import ReCAP
from recap.methods.recap.regimes import build
from recap.methods.registry import resolve_settings

MakeModel = Callable[..., ReCAP]


@torch.no_grad()
def shake(model: ReCAP) -> None:
    """Give gates, layer weights and the length of prototypes values that they may have later."""
    branches = [model.maps] if model.shared else [model.maps, model.scores]
    for branch in branches:
        branch.theta.copy_(torch.randn_like(branch.theta))
    for layer in zip(*(branch.pairs for branch in branches), strict=True):
        for pair in layer:
            pair.base.mul_(0.5 + torch.rand(2, 1))
            if pair.weight is not None:
                pair.weight.copy_(torch.randn_like(pair.weight))
            if pair.gate is not None:
                pair.gate.copy_(torch.randn_like(pair.gate))


@pytest.fixture(scope="session")
def double_encoder(tiny_encoder: Encoder) -> Encoder:
    return copy.deepcopy(tiny_encoder).double()


@pytest.fixture
def make_model(tiny_encoder: Encoder, double_encoder: Encoder) -> MakeModel:
    """make_model(preset, regime, double=…, **sections of the settings)."""

    def make(
        preset: str = "fast", regime: str = "both", *, double: bool = False, **values: Any
    ) -> ReCAP:
        encoder = {"name": "tiny", "input_px": 70}
        settings = resolve_settings(preset, encoder=encoder, seed=1, **values)
        model = build(double_encoder if double else tiny_encoder, settings, regime)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            shake(model)
        return model.double() if double else model.float()

    return make


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.rand(3, 3, 70, 70, generator=torch.Generator().manual_seed(2))
