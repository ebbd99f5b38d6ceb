"""Margins with a sparse gradient against the equations, composed from torch's own operations."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.methods.recap.adapters import SLOPE
from recap.methods.recap.prototypes import adapted_margins, class_logits, margin


def inputs(images=3, patches=7, width=5, channels=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    taps = torch.randn(images, patches, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(channels, width, generator=generator, dtype=torch.float64)
    anchors = torch.randn(images, 2, channels, generator=generator, dtype=torch.float64)
    return taps, weight.requires_grad_(), F.normalize(anchors, dim=-1).requires_grad_()


def dense(taps, weight, anchors):
    tokens = F.leaky_relu(F.linear(taps, weight), SLOPE)
    return margin(class_logits(tokens, anchors, 1.0))


def sparse(taps, weight, anchors):
    tokens = F.leaky_relu(F.linear(taps, weight), SLOPE).detach()
    return adapted_margins(taps, weight, tokens, anchors)


def gradients(values, weight, anchors, slopes):
    return torch.autograd.grad((values * slopes).sum(), (weight, anchors))


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), used=st.integers(0, 21))
def test_value_and_gradient_are_those_of_the_equations(seed, used):
    taps, weight, anchors = inputs(seed=seed)
    slopes = torch.randn(21, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    slopes[used:] = 0  # as for patches outside the top k
    slopes = slopes.view(3, 7)
    expected, found = dense(taps, weight, anchors), sparse(taps, weight, anchors)
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(
        gradients(found, weight, anchors, slopes),
        gradients(expected, weight, anchors, slopes),
        strict=True,
    ):
        largest = float(theirs.abs().max())
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * largest)


def test_what_is_passed_over_is_below_rounding():
    taps, weight, anchors = inputs(patches=50)
    slopes = torch.logspace(0, -30, 50, dtype=torch.float64).expand(3, 50)
    ours = gradients(sparse(taps, weight, anchors), weight, anchors, slopes)
    theirs = gradients(dense(taps, weight, anchors), weight, anchors, slopes)
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() < 1e-6 * other.abs().max()
    assert not torch.equal(ours[0], theirs[0])  # something was passed over


def test_a_black_image_has_no_infinite_gradient():
    _, weight, anchors = inputs()
    taps = torch.zeros(3, 7, 5, dtype=torch.float64)
    found = gradients(sparse(taps, weight, anchors), weight, anchors, torch.ones(3, 7))
    assert all(bool(torch.isfinite(g).all()) for g in found)


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_no_slope_no_gradient(value):
    taps, weight, anchors = inputs()
    slopes = torch.full((3, 7), value, dtype=torch.float64)
    found = gradients(sparse(taps, weight, anchors), weight, anchors, slopes)
    assert all(bool((g == 0).all()) for g in found)
