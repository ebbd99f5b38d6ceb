"""Models whose every parameter was moved away from its start, so that each one shows."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from recap.encoders.vit import Encoder
from recap.methods.recap.head import ReCAP, Teacher
from recap.methods.recap.prototypes import PrototypePair
from recap.methods.registry import resolve_settings

MakeModel = Callable[..., ReCAP]


@torch.no_grad()
def shake(model: ReCAP) -> None:
    """Give gates, layer weights and the length of prototypes values that they may have later."""
    for theta in (model.theta_seg, model.theta_det):
        theta.copy_(torch.randn_like(theta))
    for pair in model.prototypes:
        assert isinstance(pair, PrototypePair)
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
    """make_model(preset, double=…, trained_head=…, single=…, **sections of the settings)."""

    def make(
        preset: str = "fast",
        *,
        double: bool = False,
        trained_head: bool = True,
        single: Teacher | None = None,
        **values: Any,
    ) -> ReCAP:
        settings = resolve_settings(preset, encoder={"name": "tiny", "input_px": 70}, **values)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = ReCAP(
                double_encoder if double else tiny_encoder, settings, trained_head, single
            )
            shake(model)
        return model.double() if double else model.float()

    return make


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.rand(3, 3, 70, 70, generator=torch.Generator().manual_seed(2))
