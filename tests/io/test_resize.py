import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.nn.functional import interpolate

from recap.errors import InputError
from recap.io.resize import SquareResize

SIZES = [(61, 97), (97, 61), (240, 240), (241, 150), (333, 517), (480, 481)]


def blob(
    size_hw: tuple[int, int], centre_yx: tuple[float, float], radius: np.ndarray
) -> np.ndarray:
    y, x = np.mgrid[: size_hw[0], : size_hw[1]]
    squared = ((y - centre_yx[0]) / radius[0]) ** 2 + ((x - centre_yx[1]) / radius[1]) ** 2
    return np.exp(-squared).astype(np.float32)


def centroid(map: np.ndarray) -> np.ndarray:
    y, x = np.mgrid[: map.shape[0], : map.shape[1]]
    return np.array([(map * y).sum(), (map * x).sum()]) / map.sum()


@pytest.mark.parametrize("size_hw", SIZES)
@pytest.mark.parametrize("at", [(0.25, 0.3), (0.5, 0.5), (0.71, 0.26), (0.3, 0.77)])
def test_a_moving_blob_goes_and_comes_back(
    size_hw: tuple[int, int], at: tuple[float, float]
) -> None:
    size = np.array(size_hw)
    centre = size * at
    resize = SquareResize(size_hw, 240)
    there = resize.apply(blob(size_hw, tuple(centre), size / 20))
    assert there.shape == (240, 240, 3)
    predicted = (centre + 0.5) * 240 / size - 0.5
    assert np.abs(centroid(there[..., 0]) - predicted).max() < 0.05
    back = resize.invert(there[..., 1])
    assert back.shape == size_hw
    assert np.abs(centroid(back) - centre).max() < 0.1


@pytest.mark.parametrize("size_hw", SIZES)
def test_mask_follows_the_image(size_hw: tuple[int, int]) -> None:
    size = np.array(size_hw)
    mask = blob(size_hw, tuple(size * 0.37), size / 9) > 0.4
    there = SquareResize(size_hw, 120).apply_mask(mask)
    predicted = (centroid(mask.astype(float)) + 0.5) * 120 / size - 0.5
    assert there.dtype == np.bool_
    assert np.abs(centroid(there.astype(float)) - predicted).max() < 0.5
    for row, column in [(0, 0), (59, 60), (119, 119), (44, 45)]:
        y, x = (int((i + 0.5) * side / 120) for i, side in zip((row, column), size_hw, strict=True))
        assert there[row, column] == mask[y, x]


@pytest.mark.parametrize("place", [(1, 1), (0, 0), (998, 1496), (501, 502)])
def test_a_small_lesion_does_not_vanish(place: tuple[int, int]) -> None:
    mask = np.zeros((999, 1497), bool)
    mask[place] = True
    there = SquareResize((999, 1497), 120).apply_mask(mask)
    assert np.argwhere(there).tolist() == [[place[0] * 120 // 999, place[1] * 120 // 1497]]


@pytest.mark.parametrize("size_hw", [(20, 33), (17, 17), (5, 40), (64, 9)])
def test_agrees_with_torch(size_hw: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    options = {"antialias": True, "align_corners": False}
    pixels = rng.random((*size_hw, 3), np.float32)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    expected = interpolate(tensor, (16, 16), mode="bicubic", **options)[0].permute(1, 2, 0)
    resize = SquareResize(size_hw, 16)
    assert np.allclose(resize.apply(pixels), expected.clamp(0, 1).numpy(), atol=1e-5)
    map = rng.random((16, 16), np.float32)
    expected = interpolate(torch.from_numpy(map)[None, None], size_hw, mode="bilinear", **options)
    assert np.allclose(resize.invert(map), expected[0, 0].numpy(), atol=1e-5)


def test_same_size_changes_nothing_and_grey_repeats() -> None:
    pixels = np.random.default_rng(2).random((24, 24), np.float32)
    resize = SquareResize((24, 24), 24)
    assert np.array_equal(resize.apply(pixels), np.dstack([pixels] * 3))
    assert np.array_equal(resize.invert(pixels), pixels)
    mask = pixels > 0.5
    assert np.array_equal(resize.apply_mask(mask), mask)


def test_depth_beyond_8_bit_survives() -> None:
    pixels = np.full((30, 30), 1000 / 65535, np.float32)
    assert np.allclose(SquareResize((30, 30), 17).apply(pixels), 1000 / 65535, atol=1e-7)


@settings(max_examples=50, deadline=None)
@given(
    map=arrays(np.float32, (8, 8), elements=st.floats(-5, 5, width=32)),
    size_hw=st.tuples(st.integers(1, 30), st.integers(1, 30)),
)
def test_inverted_map_stays_in_range(map: np.ndarray, size_hw: tuple[int, int]) -> None:
    back = SquareResize(size_hw, 8).invert(map)
    assert back.shape == size_hw
    assert back.min() >= map.min()
    assert back.max() <= map.max()


def test_bicubic_overshoot_is_clipped() -> None:
    step = np.zeros((10, 10), np.float32)
    step[:, 5:] = 1
    there = SquareResize((10, 10), 33).apply(step)
    assert there.min() == 0
    assert there.max() == 1


def test_wrong_size_is_named() -> None:
    with pytest.raises(InputError, match=r"10x12.*9x9"):
        SquareResize((10, 12), 8).apply(np.zeros((9, 9), np.float32))
