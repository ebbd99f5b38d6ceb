"""The whole model: against loops, and independent of what else is scored with an image."""

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import slow_model
import torch
import transformers
from heads import DET, SEG, Tokens, adapt, labelled, pair, parts, remember
from torch import Tensor

from recap.encoders.load import load_encoder
from recap.encoders.vit import Encoder
from recap.methods.base import Output
from recap.methods.recap.head import ReCAP
from recap.methods.recap.losses import Objective
from recap.methods.recap.maps import interpolation_matrix
from recap.methods.recap.memory import build_memory
from recap.methods.registry import resolve_settings

MakeModel = Callable[..., ReCAP]
BATCH_TOLERANCE = 1e-6


def slow_prototypes(model: ReCAP, tokens: Tokens, image: int) -> tuple[float, np.ndarray]:
    """Score and map of one image from Eqs. 1 to 4, 7 and 8."""
    head, score, fused = model.settings.model, 0.0, np.zeros((70, 70))
    seg_weights, det_weights = (
        slow_model.softmax(t.tolist()) for t in (model.maps.theta, model.scores.theta)
    )
    for layer in range(4):
        phi: list[list[float]] = []
        shares: list[list[float]] = []
        for branch in (SEG, DET):
            patches, own = tokens[layer][branch][image].tolist(), pair(model, layer, branch)
            assert own.weight is not None
            assert own.gate is not None
            c = slow_model.context(patches)
            anchors = [
                slow_model.anchor(q, "gated", w, b, head.eta, c)
                for q, w, b in zip(
                    own.base.tolist(), own.weight.tolist(), own.gate.tolist(), strict=True
                )
            ]
            both = [slow_model.logits(p, *anchors, head.logit_scale) for p in patches]
            phi.append([abnormal - normal for normal, abnormal in both])
            shares.append([slow_model.abnormal_share(*two) for two in both])
        score += det_weights[layer] * slow_model.top_mean(shares[DET], head.top_k)
        layer_map = slow_model.upsampled(phi[SEG], 70, 14, head.upsample)
        fused += seg_weights[layer] * np.vectorize(slow_model.sigmoid)(layer_map)
    return score, fused


def slow_memory(
    model: ReCAP, tokens: Tokens, normal: Tokens, image: int
) -> tuple[float, np.ndarray]:
    """Score and map of one image from Eqs. 5 to 8."""
    score, fused = 0.0, np.zeros((70, 70))
    seg_weights, det_weights = (
        slow_model.softmax(t.tolist()) for t in (model.maps.theta, model.scores.theta)
    )
    for layer in range(4):
        halves = []
        for branch in (SEG, DET):
            bank = normal[layer][branch].flatten(0, 1).tolist()
            patches = tokens[layer][branch][image].tolist()
            halves.append([slow_model.half_clipped(slow_model.nearest(p, bank)) for p in patches])
        score += det_weights[layer] * slow_model.top_mean(halves[DET], 0.10)
        head = model.settings.model
        fused += seg_weights[layer] * slow_model.upsampled(halves[SEG], 70, 14, head.upsample)
    return score, fused


@pytest.mark.parametrize("preset", ["fast", "paper"])
@pytest.mark.parametrize("scale", [5.0, 100.0])
@torch.no_grad()
def test_whole_model_against_loops(
    make_model: MakeModel, pixels: Tensor, preset: str, scale: float
) -> None:
    values = {"model": {"logit_scale": scale, "eta": 0.2}, "memory": {"weight": 0.3}}
    model = make_model(preset, double=True, **values)
    tokens = adapt(model, pixels.double())
    normal = [(seg[1:], det[1:]) for seg, det in tokens]
    remember(model, normal)
    output, alone = model(pixels.double()), parts(model, pixels.double())
    without = make_model(preset, "domain_both", double=True, **values)(pixels.double())
    prototype, memory = slow_prototypes(model, tokens, 0), slow_memory(model, tokens, normal, 0)
    close = {"atol": 1e-5 * scale / 100, "rtol": 0}
    for seen, expected in (
        (without, prototype),
        (alone["prototype"], prototype),
        (alone["memory"], memory),
        (output, [0.7 * p + 0.3 * m for p, m in zip(prototype, memory, strict=True)]),
    ):
        np.testing.assert_allclose(seen.score[0].item(), expected[0], **close)
        np.testing.assert_allclose(seen.map[0].numpy(), expected[1], **close)


def fitted(make_model: MakeModel, preset: str, head: bool, double: bool = False) -> ReCAP:
    model = make_model(preset, "both" if head else "nearest", double=double)
    normal = torch.rand(2, 3, 70, 70, generator=torch.Generator().manual_seed(5))
    remember(model, adapt(model, normal.to(model.scores.theta.dtype)))
    return model


def numbers(output: Output) -> list[Tensor]:
    """Everything that is said about each image."""
    found = [output.score, output.map, *output.scores.values()]
    return found + ([output.drift] if output.drift is not None else [])


@pytest.mark.parametrize(("preset", "head"), [("fast", True), ("paper", True), ("fast", False)])
@torch.no_grad()
def test_a_batch_gives_what_single_images_give(
    make_model: MakeModel, pixels: Tensor, preset: str, head: bool
) -> None:
    model = fitted(make_model, preset, head)
    whole = numbers(model(pixels))
    for image in range(3):
        single = numbers(model(pixels[image : image + 1]))
        for seen, expected in zip(single, whole, strict=True):
            torch.testing.assert_close(seen[0], expected[image], atol=BATCH_TOLERANCE, rtol=0)


@pytest.mark.parametrize("order", list(permutations(range(3))))
@torch.no_grad()
def test_another_order_gives_the_same_in_that_order(
    make_model: MakeModel, pixels: Tensor, order: tuple[int, ...]
) -> None:
    model = fitted(make_model, "fast", True)
    for seen, expected in zip(
        numbers(model(pixels[list(order)])), numbers(model(pixels)), strict=True
    ):
        torch.testing.assert_close(seen, expected[list(order)], atol=BATCH_TOLERANCE, rtol=0)


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_neighbours_have_no_part_in_a_score(
    make_model: MakeModel, pixels: Tensor, preset: str
) -> None:
    """Not a matter of rounding: the derivative to another image's pixels is nought."""
    model = fitted(make_model, preset, True, double=True)
    hidden = model.encode(pixels.double()).requires_grad_()
    output = model.judge(model.features(hidden, pixels.double()))
    (gradient,) = torch.autograd.grad(output.score[0] + output.map[0].sum(), hidden)
    assert (gradient[0] != 0).any()
    assert (gradient[1:] == 0).all()


@pytest.mark.parametrize("brightness", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("head", [True, False])
@torch.no_grad()
def test_scores_and_maps_stay_between_nought_and_one(
    make_model: MakeModel, pixels: Tensor, brightness: float, head: bool
) -> None:
    model = fitted(make_model, "fast", head)
    flat = torch.full((1, 3, 70, 70), brightness)
    for value in numbers(model(torch.cat([pixels, flat])))[:4]:
        assert torch.isfinite(value).all()
        assert value.min() >= 0
        assert value.max() <= 1 + 1e-6


@torch.no_grad()
def test_memory_alone_uses_the_encoders_own_tokens(make_model: MakeModel, pixels: Tensor) -> None:
    model = make_model(regime="nearest", double=True)
    taps = model.encoder.taps(pixels.double())
    normal = adapt(model, pixels.double()[1:])
    remember(model, normal)
    assert model.memory is not None
    assert model.memory.rows is not None
    assert model.memory.rows.shape == (4, 1, 50, 32)  # both branches are one
    for layer in range(4):
        torch.testing.assert_close(model.memory.rows[layer, 0], build_memory(taps[1:, layer]))
    output = model(pixels.double())
    assert output.scores.keys() == {"memory"}
    assert output.drift is None
    score, expected = slow_memory(model, [(t, t) for t in taps.unbind(1)], normal, 0)
    np.testing.assert_allclose(output.score[0].item(), score, atol=1e-10)
    np.testing.assert_allclose(output.map[0].numpy(), expected, atol=1e-6)
    # The remembered images themselves are at distance zero.
    torch.testing.assert_close(output.score[1:], torch.zeros(2).double(), atol=1e-12, rtol=0)


def test_neither_prototypes_nor_memory_is_an_error(make_model: MakeModel, pixels: Tensor) -> None:
    with pytest.raises(RuntimeError, match="fit comes first"):
        make_model(regime="nearest")(pixels)


@pytest.mark.parametrize("weight", [0.0, 1.0])
@torch.no_grad()
def test_lambda_at_its_ends(make_model: MakeModel, pixels: Tensor, weight: float) -> None:
    model = make_model(memory={"weight": weight})
    remember(model, adapt(model, pixels[:1]))
    output = model(pixels)
    chosen = "memory" if weight else "prototype"
    assert torch.equal(output.score, output.scores[chosen])
    torch.testing.assert_close(output.map, parts(model, pixels)[chosen].map)


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_inference_then_training_in_one_process(
    make_model: MakeModel, pixels: Tensor, preset: str
) -> None:
    """What inference mode caches must serve training, which needs gradients through it."""
    interpolation_matrix.cache_clear()
    model = make_model(preset, "domain_both")
    with torch.inference_mode():
        before = model(pixels).score.clone()
    images = labelled(
        torch.tensor([False, True, True]), torch.zeros(3, 70, 70) > 0, torch.ones(3) > 0
    )
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    Objective(model, [model.maps, model.scores])(model.encode(pixels), images).total.backward()
    optimiser.step()
    with torch.inference_mode():
        assert not torch.equal(model(pixels).score, before)


def test_the_encoder_stays_as_it_was(make_model: MakeModel, pixels: Tensor) -> None:
    model = make_model("paper", "domain_both").train()
    assert not model.encoder.model.training
    model(pixels).score.sum().backward()
    assert all(p.grad is None for p in model.encoder.parameters())


@torch.no_grad()
def test_a_folder_is_an_encoder(tiny_folder: Path, pixels: Tensor) -> None:
    chosen = {"name": str(tiny_folder), "input_px": 70, "normalise": "unit"}
    encoder = load_encoder(resolve_settings(encoder=chosen).encoder)
    saved = transformers.Dinov2Model.from_pretrained(tiny_folder)
    plain = Encoder(saved, name="tiny", checksum="tiny", input_px=70)
    assert torch.equal(encoder.taps(pixels), plain.taps(pixels))
