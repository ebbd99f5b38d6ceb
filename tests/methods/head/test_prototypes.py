"""Eqs. 1 and 2: the image's context, the re-centred prototypes and how far they may move."""

import math
from collections.abc import Callable
from typing import get_args

import pytest
import slow_model
import torch
from heads import DET, SEG, adapt, labelled, pair
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recap.methods.recap.head import ReCAP
from recap.methods.recap.prototypes import (
    CONDITIONING,
    PrototypePair,
    context,
    drift_bound,
    find_drift,
    random_prototypes,
    recentre,
)
from recap.methods.recap.regimes import BOTH
from recap.methods.recap.settings import Conditioning
from recap.methods.recap.teach import start

MakeModel = Callable[..., ReCAP]
CONDITIONINGS = get_args(Conditioning)
CHANNELS = 5


def shaken_pair(conditioning: Conditioning, eta: float = 0.3) -> PrototypePair:
    anchors = random_prototypes(CHANNELS) if conditioning == "tokens" else None
    pair = PrototypePair(CHANNELS, conditioning, eta, anchors).double()
    with torch.no_grad():
        pair.base.mul_(torch.tensor([[0.6], [1.7]]))
        if pair.weight is not None:
            pair.weight.normal_()
        if pair.gate is not None:
            pair.gate.copy_(torch.tensor([-0.8, 1.3]))
    return pair


def conditioning_of(pair: PrototypePair) -> str:
    named = {id(row): name for name, row in CONDITIONING.items()}
    return named[id(pair.condition)]


def slow_anchors(pair: PrototypePair, tokens: Tensor) -> Tensor:
    images = []
    for image in tokens.tolist():
        c = slow_model.context(image)
        images.append(
            [
                slow_model.anchor(
                    pair.base[z].tolist(),
                    conditioning_of(pair),
                    None if pair.weight is None else pair.weight[z].tolist(),
                    None if pair.gate is None else pair.gate[z].item(),
                    pair.eta,
                    c,
                )
                for z in (0, 1)
            ]
        )
    return torch.tensor(images, dtype=torch.float64)


def test_context_averages_before_it_normalises() -> None:
    tokens = torch.tensor([[[3.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    hand = torch.tensor([[3.0, 1.0]], dtype=torch.float64) / math.sqrt(10)
    torch.testing.assert_close(context(tokens), hand)  # unit tokens first would give (1, 1)/√2


def test_context_against_loops() -> None:
    tokens = torch.randn(3, 4, CHANNELS, dtype=torch.float64)
    slow = torch.tensor([slow_model.context(image) for image in tokens.tolist()])
    torch.testing.assert_close(context(tokens), slow.double(), atol=1e-7, rtol=0)


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@torch.no_grad()
def test_anchors_of_every_conditioning(conditioning: Conditioning) -> None:
    torch.manual_seed(0)
    pair, tokens = shaken_pair(conditioning), torch.randn(3, 4, CHANNELS, dtype=torch.float64)
    anchors = pair(tokens)
    assert anchors.shape == (3, 2, CHANNELS)
    torch.testing.assert_close(anchors, slow_anchors(pair, tokens))
    torch.testing.assert_close(anchors.norm(dim=-1), torch.ones(3, 2, dtype=torch.float64))


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_what_each_conditioning_trains(conditioning: Conditioning) -> None:
    names = [name for name, _ in shaken_pair(conditioning).named_parameters()]
    expected = ["base"]
    expected += ["weight"] if conditioning in ("gated", "bounded", "unbounded") else []
    expected += ["gate"] if conditioning == "gated" else []
    assert names == expected


def test_start_of_a_pair() -> None:
    torch.manual_seed(0)
    pair = PrototypePair(64, "gated", 0.05)
    assert pair.gate is not None
    assert pair.weight is not None
    assert torch.equal(pair.gate, torch.zeros(2))
    torch.testing.assert_close(pair.base.norm(dim=-1), torch.ones(2))
    # As torch.nn.Linear(64, 64) starts: uniform within ±1/√64.
    assert pair.weight.abs().max() <= 1 / 8
    assert pair.weight.std().item() == pytest.approx(1 / 8 / math.sqrt(3), rel=0.05)


def test_prototypes_start_at_normalised_means() -> None:
    pair, means = shaken_pair("gated"), torch.tensor([[3.0, 4, 0, 0, 0], [0, 0, 0, 0, 2.0]])
    pair.start_at(means)
    expected = torch.tensor([[0.6, 0.8, 0, 0, 0], [0, 0, 0, 0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(pair.base.detach(), expected, atol=1e-7, rtol=0)


def test_shared_anchors_keep_their_random_start() -> None:
    pair = shaken_pair("tokens")
    before = pair.base.detach().clone()
    pair.start_at(torch.ones(2, CHANNELS))
    assert torch.equal(pair.base, before)


@torch.no_grad()
def test_model_starts_at_class_means_of_all_patches(make_model: MakeModel, pixels: Tensor) -> None:
    model = make_model(double=True)
    tokens = adapt(model, pixels.double())
    hidden = model.encode(pixels.double())
    images = labelled(torch.tensor([False, False, True]), torch.zeros(3, 1, 1), torch.zeros(3) > 0)
    start(model, BOTH[0], images, [0, 1, 2], hidden)  # type: ignore[arg-type]
    for layer in range(4):
        for branch in (SEG, DET):
            for z, chosen in enumerate((slice(0, 2), slice(2, 3))):
                patches = tokens[layer][branch][chosen].flatten(0, 1).tolist()
                means = [sum(p[i] for p in patches) / len(patches) for i in range(32)]
                expected = torch.tensor(slow_model.norm(means), dtype=torch.float64)
                torch.testing.assert_close(pair(model, layer, branch).base[z], expected)


def test_tokens_share_one_pair_over_layers_and_branches(make_model: MakeModel) -> None:
    model = make_model(model={"conditioning": "tokens"})
    bases = {id(pair(model, layer, branch).base) for layer in range(4) for branch in (SEG, DET)}
    assert len(bases) == 1
    own = make_model(model={"conditioning": "static"})
    assert len({id(pair(own, i, b).base) for i in range(4) for b in (SEG, DET)}) == 8


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@torch.no_grad()
def test_drift_of_every_branch_layer_and_class(
    make_model: MakeModel, pixels: Tensor, conditioning: Conditioning
) -> None:
    model = make_model(
        regime="domain_both", double=True, model={"conditioning": conditioning, "eta": 0.2}
    )
    tokens = adapt(model, pixels[:2].double())
    drift = model(pixels[:2].double()).drift
    assert drift is not None
    assert drift.shape == (2, 2, 4, 2)
    for branch in (SEG, DET):
        for layer in range(4):
            own = pair(model, layer, branch)
            anchors = slow_anchors(own, tokens[layer][branch])
            for image in range(2):
                for z in (0, 1):
                    began = slow_model.norm(own.base[z].tolist())
                    moved = [a - b for a, b in zip(anchors[image, z].tolist(), began, strict=True)]
                    seen = drift[image, branch, layer, z].item()
                    assert seen == pytest.approx(slow_model.length(moved), abs=1e-12)
    still = conditioning in ("static", "tokens")
    assert bool((drift == 0).all()) == still


@given(
    seed=st.integers(0, 2**31),
    channels=st.integers(1, 24),
    base_norm=st.floats(1e-4, 1e4),
    beta=st.floats(-30, 30),
    eta=st.floats(1e-6, 20),
    spread=st.floats(1e-3, 1e4),
    conditioning=st.sampled_from(CONDITIONINGS),
)
@settings(deadline=None, max_examples=200)
@torch.no_grad()
def test_no_image_moves_a_prototype_beyond_the_bound(
    seed: int,
    channels: int,
    base_norm: float,
    beta: float,
    eta: float,
    spread: float,
    conditioning: Conditioning,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    pair = PrototypePair(channels, conditioning, eta).double()
    unit = torch.nn.functional.normalize(torch.randn(2, channels, generator=generator), dim=-1)
    pair.base.copy_(unit * base_norm)
    if pair.weight is not None:
        pair.weight.copy_(torch.randn(2, channels, channels, generator=generator) * spread)
    if pair.gate is not None:
        pair.gate.fill_(beta)
    tokens = torch.randn(4, 3, channels, generator=generator, dtype=torch.float64)
    drift = find_drift([pair], pair(tokens)[None])[0]
    bound = pair.drift_bound()
    assert bound.shape == (2,)
    assert (drift <= bound + 1e-7).all()
    assert (bound <= 2).all()


@pytest.mark.parametrize("ratio", [1e-3, 0.3, 0.9, 0.999])
def test_the_bound_is_attained(ratio: float) -> None:
    """The worst residual stands at a right angle to the sum: q + r ⟂ r."""
    channels, eta, beta = 16, 0.05, 0.7
    entry = slow_model.sigmoid(beta) * eta
    residual = torch.full((channels,), entry, dtype=torch.float64)
    base_norm = entry * math.sqrt(channels) / ratio
    across = torch.tensor([1.0, -1.0] * (channels // 2), dtype=torch.float64) / math.sqrt(channels)
    q = -residual + across * math.sqrt(base_norm**2 - residual.norm().item() ** 2)
    base = torch.stack([q, -q])
    saturated = torch.full((1, 2, channels), 1e3, dtype=torch.float64)
    saturated[:, 1] *= -1
    gate = torch.full((2,), beta, dtype=torch.float64)
    anchors = recentre(base, saturated, gate, eta)[0]
    drift = (anchors - base / base_norm).norm(dim=-1)
    bound = drift_bound(base.norm(dim=-1), torch.sigmoid(gate) * eta, channels)
    torch.testing.assert_close(drift, bound, rtol=1e-6, atol=1e-12)


def test_hand_values_of_the_bound() -> None:
    norms, strengths = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.0, 0.125, 0.3])
    # ρ = 0, then ρ = 1/2: the chord of 30°, then ρ > 1: the sphere's diameter.
    expected = torch.tensor([0.0, 2 * math.sin(math.pi / 12), 2.0])
    torch.testing.assert_close(drift_bound(norms, strengths, 16), expected)
