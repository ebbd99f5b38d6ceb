"""Smoothing against scipy's filter."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from recap.methods._tokens import gaussian_smooth


@pytest.mark.parametrize(("size", "sigma"), [(40, 4.0), (7, 4.0), (33, 1.3), (3, 2.0)])
def test_as_scipy_does_it(size, sigma):
    maps = np.random.default_rng(0).normal(size=(2, size, size))
    smooth = gaussian_smooth(torch.from_numpy(maps), sigma).numpy()
    expected = [gaussian_filter(one, sigma, mode="reflect", truncate=4.0) for one in maps]
    np.testing.assert_allclose(smooth, expected, atol=1e-10)


def test_each_map_alone():
    maps = torch.rand(3, 20, 20)
    one_by_one = torch.cat([gaussian_smooth(one[None], 2.0) for one in maps])
    torch.testing.assert_close(gaussian_smooth(maps, 2.0), one_by_one)
