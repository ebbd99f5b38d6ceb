"""Eqs. 10 to 12: one loss per image, against loops and hand values."""

from collections.abc import Callable

import numpy as np
import pytest
import slow_model
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recap.methods.recap.losses import (
    detection_loss,
    dice_loss,
    focal_loss,
    segmentation_loss,
    separation_loss,
)


def example(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    maps = torch.rand(3, 6, 6, generator=generator, dtype=torch.float64)
    masks = torch.rand(3, 6, 6, generator=generator) > 0.6
    masks[0] = False
    return maps, masks


def per_image(function: Callable[..., float], maps: Tensor, masks: Tensor) -> Tensor:
    values = [function(a.numpy(), m.numpy()) for a, m in zip(maps, masks, strict=True)]
    return torch.tensor(values, dtype=torch.float64)


def test_focal_against_loops() -> None:
    maps, masks = example()
    torch.testing.assert_close(focal_loss(maps, masks), per_image(slow_model.focal, maps, masks))


@pytest.mark.parametrize("value", [0.0, 1e-7, 0.5, 1.0])
@pytest.mark.parametrize("truth", [False, True])
def test_focal_is_finite_at_its_ends(value: float, truth: bool) -> None:
    maps = torch.full((1, 2, 2), value, dtype=torch.float64, requires_grad=True)
    loss = focal_loss(maps, torch.full((1, 2, 2), truth))
    slow = slow_model.focal(np.full((2, 2), value), np.full((2, 2), truth))
    assert loss.item() == pytest.approx(slow, rel=1e-9, abs=1e-15)
    loss.backward()
    assert maps.grad is not None
    assert torch.isfinite(maps.grad).all()


def test_dice_against_loops() -> None:
    maps, masks = example()
    torch.testing.assert_close(dice_loss(maps, masks), per_image(slow_model.dice, maps, masks))


def test_dice_of_a_normal_image_punishes_every_glow() -> None:
    maps = example()[0][:1]
    loss = dice_loss(maps, torch.zeros(1, 6, 6, dtype=torch.bool))
    assert loss.item() == pytest.approx(1 - 1 / (maps.sum().item() + 1))
    dark = dice_loss(torch.zeros(1, 6, 6), torch.zeros(1, 6, 6, dtype=torch.bool))
    assert dark.item() == 0


def test_segmentation_is_their_sum_and_least_at_the_mask() -> None:
    maps, masks = example()
    both = focal_loss(maps, masks) + dice_loss(maps, masks)
    torch.testing.assert_close(segmentation_loss(maps, masks), both)
    assert (segmentation_loss(masks.double(), masks) < 1e-4).all()


@given(score=st.floats(0, 1, width=32), abnormal=st.booleans())
@settings(deadline=None)
def test_detection_against_the_cross_entropy(score: float, abnormal: bool) -> None:
    seen = detection_loss(torch.tensor([score]), torch.tensor([abnormal]))
    # float32 keeps 1 − 1e-6 to within 6 % of 1e-6.
    assert seen.item() == pytest.approx(slow_model.detection(score, abnormal), rel=0.02, abs=1e-6)


def test_detection_is_in_float32_and_per_image() -> None:
    scores = torch.tensor([0.2, 0.9], dtype=torch.bfloat16)
    loss = detection_loss(scores, torch.tensor([True, False]))
    assert loss.dtype == torch.float32
    expected = [slow_model.detection(scores[0].item(), True)]
    expected += [slow_model.detection(scores[1].item(), False)]
    torch.testing.assert_close(loss, torch.tensor(expected))


@pytest.mark.parametrize("delta", [-0.5, 0.0, 0.5])
def test_separation_against_loops(delta: float) -> None:
    bases = torch.randn(4, 2, 2, 5, dtype=torch.float64)
    seen = separation_loss(bases, delta).item()
    assert seen == pytest.approx(slow_model.separation(bases.numpy(), delta))


def test_separation_of_known_pairs() -> None:
    equal = torch.ones(1, 1, 2, 3)
    opposite = equal * torch.tensor([1.0, -5.0]).view(1, 1, 2, 1)
    bases = torch.cat([torch.cat([equal, opposite], dim=1)] * 2)  # cosines 1, −1, 1, −1
    np.testing.assert_allclose(separation_loss(bases, 0.0).item(), 0.5, rtol=1e-6)
    np.testing.assert_allclose(separation_loss(bases, 0.5).item(), 0.25, rtol=1e-6)
    np.testing.assert_allclose(separation_loss(bases, -0.5).item(), 0.75, rtol=1e-6)
