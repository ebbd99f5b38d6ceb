"""Principal directions against numpy."""

import numpy as np
import pytest
import torch

from recap.methods.recap.adapters import ROW_LENGTH, Spread, principal_rows


def test_the_covariance_is_that_of_all_tokens_together():
    tokens = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0)) + 2
    spread = Spread(7)
    for image in tokens:
        spread.add(image[None])
    rows = tokens.reshape(-1, 7).double().numpy()
    np.testing.assert_allclose(spread.covariance(), np.cov(rows.T, bias=True), atol=1e-5)


def test_rows_are_singular_vectors_and_their_opposites():
    rows = np.random.default_rng(1).normal(size=(50, 6)) * [9, 1, 4, 0.1, 2, 7]
    centred = rows - rows.mean(axis=0)
    start = principal_rows(torch.from_numpy(centred.T @ centred / 50), 7)
    assert start.shape == (6, 6)  # three pairs; a seventh channel keeps its own start
    assert torch.equal(start[3:], -start[:3])
    expected = np.linalg.svd(centred)[2][:3] * ROW_LENGTH
    signs = np.sign((expected * start[:3].numpy()).sum(axis=1))[:, None]
    np.testing.assert_allclose(start[:3], signs * expected, atol=1e-6)


def test_there_are_no_more_directions_than_the_encoder_is_wide():
    assert principal_rows(torch.eye(4, dtype=torch.float64), 100).shape == (8, 4)


def test_rows_are_as_long_as_those_of_a_random_start():
    random = torch.nn.Linear(384, 128, bias=False).weight.norm(dim=1).mean()
    assert float(random.detach()) == pytest.approx(ROW_LENGTH, rel=0.05)
