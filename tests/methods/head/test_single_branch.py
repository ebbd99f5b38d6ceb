"""One branch for maps and scores (`model.branches = "taught"`), against loops."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import slow_model
import torch
from heads import DET, SEG, Tokens, adapt, labelled, pair, parts, remember
from scipy.ndimage import gaussian_filter
from torch import Tensor

from recap.errors import SettingsError
from recap.methods.recap.head import ReCAP
from recap.methods.recap.losses import Objective
from recap.methods.recap.maps import upsample
from recap.methods.recap.sources import WholeImage

MakeModel = Callable[..., ReCAP]
HEAD = {"map_logit_scale": 7.0, "map_blur_px": 4.0, "map_top_k": 0.2, "appearance_weight": 0.25}


@pytest.mark.parametrize(("mode", "inside"), [("centres", slice(7, 63)), ("corners", slice(None))])
def test_blur_is_that_of_the_map(mode: str, inside: slice) -> None:
    """It must be what a Gaussian filter does to the map, between the outer patches."""
    values = torch.randn(25, dtype=torch.float64)
    sharp, soft = (upsample(values, 70, 14, mode, blur).numpy() for blur in (0.0, 5.0))  # type: ignore[arg-type]
    expected = gaussian_filter(sharp, 5.0, mode="nearest", truncate=6.0)
    np.testing.assert_allclose(soft[inside, inside], expected[inside, inside], atol=1e-5)
    assert np.abs(soft - sharp).max() > 0.01
    if mode == "centres":  # beyond them it stays as it is at them, and peaks stay where they are
        np.testing.assert_allclose(soft[:7], np.repeat(soft[:1], 7, axis=0), atol=1e-6)
        np.testing.assert_allclose(soft[:, 63:], np.repeat(soft[:, -1:], 7, axis=1), atol=1e-6)


def slow_margins(model: ReCAP, patches: list[list[float]], layer: int) -> list[float]:
    own = pair(model, layer, SEG)
    assert own.weight is not None
    assert own.gate is not None
    c, eta = slow_model.context(patches), model.settings.model.eta
    anchors = [
        slow_model.anchor(q, "gated", w, b, eta, c)
        for q, w, b in zip(own.base.tolist(), own.weight.tolist(), own.gate.tolist(), strict=True)
    ]
    both = [slow_model.logits(p, *anchors, model.settings.model.logit_scale) for p in patches]
    return [abnormal - normal for normal, abnormal in both]


def blurred(values: list[float]) -> np.ndarray:
    """Row by row, column by column; beyond the centres of the outer patches as at them."""
    padded = np.pad(slow_model.upsampled(values, 70, 14, "centres"), 40, mode="edge")

    def down(rows: np.ndarray) -> np.ndarray:
        result = []
        for pixel in range(70):
            place = min(max(pixel, 6.5), 62.5)
            away = (np.arange(-40, 110) - place) / HEAD["map_blur_px"]
            weights = np.exp(-0.5 * away**2)
            result.append(weights @ rows / weights.sum())
        return np.array(result)

    return down(down(padded).T).T


@pytest.mark.parametrize("teacher", ["masks", "labels"])
@torch.no_grad()
def test_the_whole_model_against_loops(make_model: MakeModel, pixels: Tensor, teacher: str) -> None:
    values: dict[str, Any] = {
        "model": {"branches": "taught", **HEAD},
        "memory": {"weight": 0.3},
    }
    if teacher == "labels":
        values["memory"]["score"] = "standardised"
    regime = {"masks": "masks", "labels": "labels_alone"}[teacher]
    model = make_model(double=True, regime=regime, **values)
    tokens = adapt(model, pixels.double())
    normal: Tokens = [(seg[1:], det[1:]) for seg, det in tokens]
    remember(model, normal)
    assert model.memory is not None
    assert model.memory.rows is not None
    assert model.memory.rows.shape[1] == 1
    statistics = torch.rand(2, 4, dtype=torch.float64) * 0.1 + 0.05
    if teacher == "labels":
        model.memory.normal = statistics
        whole = model.find_source("appearance")
        assert isinstance(whole, WholeImage)
        vectors = model.features(model.encode(pixels.double())).appearance
        whole.learn(vectors, torch.tensor([False, False, True]))
    output = model(pixels.double())
    alone = parts(model, pixels.double())
    weights = slow_model.softmax(model.maps.theta.tolist())
    scores, maps = [0.0, 0.0], [np.zeros((70, 70)), np.zeros((70, 70))]
    soften = HEAD["map_logit_scale"] / model.settings.model.logit_scale
    for layer in range(4):
        patches = tokens[layer][SEG][0].tolist()
        phi = slow_margins(model, patches, layer)
        bank = normal[layer][DET].flatten(0, 1).tolist()
        distances = [slow_model.nearest(p, bank) for p in patches]
        if teacher == "masks":
            shares = [slow_model.sigmoid(soften * x) for x in phi]
            scores[0] += weights[layer] * slow_model.top_mean(shares, HEAD["map_top_k"])
            halves = [slow_model.half_clipped(d) for d in distances]
            scores[1] += weights[layer] * slow_model.top_mean(halves, HEAD["map_top_k"])
        else:
            shares = [slow_model.sigmoid(x) for x in phi]
            scores[0] += weights[layer] * slow_model.top_mean(shares, 0.10)
            mean, deviation = statistics[:, layer].tolist()
            beyond = [slow_model.sigmoid((d - mean) / deviation - 3) for d in distances]
            scores[1] += weights[layer] * slow_model.top_mean(beyond, HEAD["map_top_k"])
        drawn = np.vectorize(slow_model.sigmoid)(blurred([soften * x for x in phi]))
        maps[0] += weights[layer] * drawn
        maps[1] += weights[layer] * blurred([slow_model.half_clipped(d) for d in distances])
    score = 0.7 * scores[0] + 0.3 * scores[1]
    if teacher == "labels":
        assert 0 < float(output.scores["appearance"][0]) < 1
        score = 0.75 * score + 0.25 * float(output.scores["appearance"][0])
    else:
        assert "appearance" not in output.scores
    close = {"atol": 1e-5, "rtol": 0}
    np.testing.assert_allclose(output.scores["prototype"][0].item(), scores[0], **close)
    np.testing.assert_allclose(output.scores["memory"][0].item(), scores[1], **close)
    np.testing.assert_allclose(output.score[0].item(), score, **close)
    np.testing.assert_allclose(alone["prototype"].map[0].numpy(), maps[0], **close)
    np.testing.assert_allclose(output.map[0].numpy(), 0.7 * maps[0] + 0.3 * maps[1], **close)
    assert output.drift is not None
    assert torch.equal(output.drift[:, SEG], output.drift[:, DET])
    bound = model.drift_bound()
    assert bound is not None
    assert bound.shape == (2, 4, 2)
    assert (output.drift <= bound + 1e-9).all()


def test_half_the_parameters(make_model: MakeModel) -> None:
    both, one = make_model(), make_model(regime="masks", model={"branches": "taught"})
    assert 2 * one.num_trainable_parameters == both.num_trainable_parameters


def test_write_back_needs_both_branches(make_model: MakeModel) -> None:
    with pytest.raises(SettingsError, match="side adapters"):
        make_model("paper", "masks", model={"branches": "taught"})


def test_each_image_teaches_what_it_can(make_model: MakeModel, pixels: Tensor) -> None:
    """Masks where there are some, labels elsewhere; never both."""
    model = make_model(regime="masks", model={"branches": "taught", "logit_scale": 5.0})
    masks = torch.zeros(3, 70, 70, dtype=torch.bool)
    masks[1, 20:40, 20:40] = True

    def terms(has_mask: list[bool], abnormal: list[bool]) -> list[float]:
        images = labelled(torch.tensor(abnormal), masks, torch.tensor(has_mask))
        return list(Objective(model, [model.maps])(model.encode(pixels), images).by_name().values())

    labels = [False, True, True]
    _, seg_all, det_all, _ = terms([True] * 3, labels)
    _, seg_none, det_none, _ = terms([False] * 3, labels)
    _, seg_some, det_some, _ = terms([True, True, False], labels)
    assert det_all == seg_none == 0
    assert 0 < seg_some < seg_all
    assert 0 < det_some < det_none
    # The label of an image with a mask has no part in it.
    assert terms([True, True, False], [True, False, True])[1:3] == [seg_some, det_some]
