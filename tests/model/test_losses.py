"""Eqs. 10 to 12: one loss per image, against loops and hand values."""

from collections.abc import Callable

import numpy as np
import pytest
import slow_model
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recap.model.losses import (
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


def logs(score: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    exact = torch.tensor([score], dtype=dtype)
    return exact.log(), torch.log1p(-exact)


@given(score=st.floats(1e-30, 1 - 1e-15), abnormal=st.booleans())
@settings(deadline=None)
def test_detection_against_the_cross_entropy(score: float, abnormal: bool) -> None:
    seen = detection_loss(*logs(score), torch.tensor([abnormal]))
    expected = slow_model.detection(score, abnormal)
    assert seen.item() == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_detection_is_in_float32_and_per_image() -> None:
    log_score, log_rest = torch.tensor([-3.0, -0.5]), torch.tensor([-0.05, -0.9])
    loss = detection_loss(log_score.bfloat16(), log_rest.bfloat16(), torch.tensor([True, False]))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, torch.tensor([3.0, 0.9]), rtol=1e-2, atol=0)


@pytest.mark.parametrize(("abnormal", "gradient"), [(False, [0.0, 1.0]), (True, [-1.0, 0.0])])
def test_the_clamp_stops_the_gradient_of_images_that_are_right_alone(
    abnormal: bool, gradient: list[float]
) -> None:
    """Margins of −60 and 60 are beyond the clamp on either side; only the wrong one still pulls."""
    margins = torch.tensor([-60.0, 60.0], requires_grad=True)
    log_score, log_rest = F.logsigmoid(margins), F.logsigmoid(-margins)
    loss = detection_loss(log_score, log_rest, torch.tensor([abnormal] * 2))
    bounds = [-np.log1p(-1e-6), -np.log(1e-6)]
    np.testing.assert_allclose(sorted(loss.tolist()), bounds, rtol=1e-5)
    (seen,) = torch.autograd.grad(loss.sum(), margins)
    torch.testing.assert_close(seen, torch.tensor(gradient))


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
