"""Eqs. 7 to 9: pooling over patches, over layers and over branches."""

import numpy as np
import pytest
import slow_model
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recap.methods.base import mix, top_count, top_k_mean, weigh


@pytest.mark.parametrize(
    ("patches", "ratio", "count"),
    [
        (289, 0.10, 28),
        (576, 0.10, 57),
        (290, 0.10, 29),
        (100, 0.29, 29),  # 28.999… in binary
        (5, 0.10, 1),
        (1, 0.10, 1),
        (289, 1.0, 289),
    ],
)
def test_top_count(patches: int, ratio: float, count: int) -> None:
    assert top_count(patches, ratio) == count


@given(patches=st.integers(1, 5000), percent=st.integers(1, 100))
@example(patches=100, percent=57)
def test_top_count_has_the_decimal_meaning(patches: int, percent: int) -> None:
    assert top_count(patches, percent / 100) == max(1, patches * percent // 100)


@given(
    values=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=60),
    ratio=st.sampled_from([0.03, 0.1, 0.25, 0.5, 1.0]),
)
@settings(deadline=None)
def test_top_k_mean_against_sorting(values: list[float], ratio: float) -> None:
    seen = top_k_mean(torch.tensor(values, dtype=torch.float64), ratio).item()
    assert seen == pytest.approx(slow_model.top_mean(values, ratio), abs=1e-12)
    assert min(values) - 1e-12 <= seen <= max(values) + 1e-12


def test_layers_are_weighed_by_a_softmax() -> None:
    values = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    theta = torch.tensor([0.3, -1.2, 2.0, 0.0], dtype=torch.float64)
    weights = slow_model.softmax(theta.tolist())
    expected = np.zeros((2, 3, 3))
    for index in np.ndindex(2, 3, 3):
        for layer in range(4):
            expected[index] += weights[layer] * values[(layer, *index)].item()
    np.testing.assert_allclose(weigh(values, theta.softmax(dim=0)).numpy(), expected)


def test_zero_theta_is_the_plain_mean() -> None:
    values = torch.randn(4, 5)
    torch.testing.assert_close(weigh(values, torch.zeros(4).softmax(dim=0)), values.mean(dim=0))


def test_image_score_pools_within_layers_before_it_fuses_them() -> None:
    patches = torch.rand(4, 3, 40, dtype=torch.float64)
    theta = torch.tensor([0.3, -1.2, 2.0, 0.0], dtype=torch.float64)
    weights = slow_model.softmax(theta.tolist())
    expected = [
        sum(w * slow_model.top_mean(patches[i, image].tolist(), 0.1) for i, w in enumerate(weights))
        for image in range(3)
    ]
    seen = weigh(top_k_mean(patches, 0.1), theta.softmax(dim=0))
    torch.testing.assert_close(seen, torch.tensor(expected, dtype=torch.float64))


@given(a=st.floats(0, 1), b=st.floats(0, 1), weight=st.floats(0, 1))
@settings(deadline=None)
def test_branches_are_mixed_by_lambda(a: float, b: float, weight: float) -> None:
    prototype, memory = (torch.tensor([v], dtype=torch.float64) for v in (a, b))
    seen = mix(prototype, memory, weight).item()
    assert seen == pytest.approx(a + weight * (b - a), abs=1e-12)
    assert mix(prototype, memory, 0.0).item() == a
    assert mix(prototype, memory, 1.0).item() == b
