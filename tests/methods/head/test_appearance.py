"""Images as a whole: the vector against loops, the regression against an independent solver."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.methods.features import Features
from recap.methods.recap.sources import PENALTY, STEEPNESS, project, solve_labels


def evidence_of(vectors: torch.Tensor, solved: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(STEEPNESS * project(vectors, solved))


def slow_vector(taps: np.ndarray) -> list[float]:
    """(L, R, width) -> mean and spread of normalised tokens, layer by layer."""
    vector: list[float] = []
    for layer in taps:
        tokens = []
        for token in layer:
            mean = sum(token) / len(token)
            variance = sum((x - mean) ** 2 for x in token) / len(token)
            tokens.append([(x - mean) / math.sqrt(variance + 1e-5) for x in token])
        columns = list(zip(*tokens, strict=True))
        means = [sum(c) / len(c) for c in columns]
        spreads = [
            math.sqrt(sum((x - m) ** 2 for x in c) / len(c))
            for c, m in zip(columns, means, strict=True)
        ]
        for part in (means, spreads):
            size = math.sqrt(sum(x * x for x in part))
            vector += [x / size for x in part]
    return vector


def test_vectors_against_loops() -> None:
    taps = torch.randn(3, 2, 5, 7, dtype=torch.float64)
    hidden = torch.cat([torch.full((3, 2, 1, 7), 9.0).double(), taps], dim=2)  # class token first
    encoder = SimpleNamespace(patches=lambda tokens: tokens[..., 1:, :])
    seen = Features(encoder, hidden).appearance  # type: ignore[arg-type]
    assert seen.shape == (3, 2 * 2 * 7)
    for row, image in zip(seen, taps, strict=True):
        np.testing.assert_allclose(row.numpy(), slow_vector(image.numpy()), atol=1e-10)


@pytest.mark.parametrize(("normal", "abnormal"), [(4, 4), (6, 2), (1, 1), (1, 5)])
def test_the_regression_against_stacked_least_squares(normal: int, abnormal: int) -> None:
    """Weighted ridge is least squares on √w-scaled rows with √penalty · I below them."""
    generator = torch.Generator().manual_seed(normal)
    vectors = torch.randn(normal + abnormal, 9, generator=generator, dtype=torch.float64)
    labels = torch.arange(normal + abnormal) >= normal
    solved = solve_labels(vectors, labels).numpy()
    x, y = vectors.numpy(), labels.numpy()
    centre = (x[y].mean(0) + x[~y].mean(0)) / 2
    length = np.linalg.norm(x - centre, axis=1).mean()
    scaled = (x - centre) / length
    count = len(x)
    weight = np.where(y, count / (2 * abnormal), count / (2 * normal))
    rows = np.vstack([np.sqrt(weight)[:, None] * scaled, math.sqrt(PENALTY) * np.eye(9)])
    target = np.concatenate([np.sqrt(weight) * np.where(y, 1.0, -1.0), np.zeros(9)])
    direction = np.linalg.lstsq(rows, target, rcond=None)[0] / length
    np.testing.assert_allclose(solved[:-1], direction, atol=1e-9)
    np.testing.assert_allclose(solved[-1], -direction @ centre, atol=1e-9)
    evidence = evidence_of(vectors, torch.from_numpy(solved))
    expected = 1 / (1 + np.exp(-STEEPNESS * ((x - centre) @ direction)))
    np.testing.assert_allclose(evidence.numpy(), expected, atol=1e-9)


def test_equal_images_are_no_singular_system() -> None:
    same = torch.ones(4, 6)
    solved = solve_labels(same, torch.tensor([False, False, True, True]))
    assert torch.isfinite(solved).all()
    torch.testing.assert_close(evidence_of(same, solved), torch.full((4,), 0.5))


@given(seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_support_images_fall_on_their_own_side(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(8, 40, generator=generator)
    labels = torch.arange(8) >= 4
    evidence = evidence_of(vectors, solve_labels(vectors, labels))
    assert (evidence[labels] > 0.5).all()
    assert (evidence[~labels] < 0.5).all()
