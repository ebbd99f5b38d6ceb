import math

import numpy as np
import pytest
import torch

from recap.data.augment import COPIES, augment

SIDE = 40


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, SIDE, SIDE, generator=generator)
    masks = torch.zeros(2, SIDE, SIDE, dtype=torch.bool)
    masks[0, 5:20, 8:30] = True
    masks[1, 30:, :9] = True
    return images, masks


def reflect(position: float) -> float:
    """Mirror at the pixel borders −0.5 and SIDE − 0.5."""
    folded = (position + 0.5) % (2 * SIDE)
    return min(folded, 2 * SIDE - folded) - 0.5


def slow_warp(channel: np.ndarray, source: object) -> np.ndarray:
    """Bilinear, one pixel at a time; `source` maps an output (x, y) to an input one, in pixels."""
    warped = np.zeros_like(channel)
    for row in range(SIDE):
        for column in range(SIDE):
            x, y = (min(max(reflect(p), 0), SIDE - 1) for p in source(column, row))
            x0, y0 = min(int(x), SIDE - 2), min(int(y), SIDE - 2)
            u, v = x - x0, y - y0
            top = (1 - u) * channel[y0, x0] + u * channel[y0, x0 + 1]
            below = (1 - u) * channel[y0 + 1, x0] + u * channel[y0 + 1, x0 + 1]
            warped[row, column] = (1 - v) * top + v * below
    return warped


def turned(angle_deg: float) -> object:
    """Positive angles turn the content counter-clockwise on the screen, about its centre."""
    middle = (SIDE - 1) / 2
    angle = math.radians(angle_deg)

    def source(x: float, y: float) -> tuple[float, float]:
        right, up = x - middle, middle - y
        back_right = math.cos(angle) * right + math.sin(angle) * up
        back_up = -math.sin(angle) * right + math.cos(angle) * up
        return middle + back_right, middle - back_up

    return source


def moved(x_px: float, y_px: float) -> object:
    return lambda x, y: (x - x_px, y - y_px)


SHIFT_PX = SIDE / 20


@pytest.mark.parametrize(
    ("copy", "source"),
    [
        (1, turned(22.5)),
        (2, turned(-22.5)),
        (3, turned(11.25)),
        (4, turned(-11.25)),
        (5, moved(SHIFT_PX, SHIFT_PX)),
        (6, moved(SHIFT_PX, -SHIFT_PX)),
        (7, moved(-SHIFT_PX, SHIFT_PX)),
        (8, moved(-SHIFT_PX, -SHIFT_PX)),
    ],
)
def test_warps_against_a_slow_one(batch: tuple, copy: int, source: object) -> None:
    images, masks = augment(*batch)
    for i in range(2):
        expected = slow_warp(batch[0][i, 1].double().numpy(), source)
        assert np.allclose(images[i * COPIES + copy, 1].numpy(), expected, atol=1e-4)
        soft = slow_warp(batch[1][i].double().numpy(), source)
        clear = np.abs(soft - 0.5) > 1e-3
        assert np.array_equal(masks[i * COPIES + copy].numpy()[clear], (soft > 0.5)[clear])


def test_identity_and_flips_are_exact(batch: tuple) -> None:
    images, masks = augment(*batch)
    assert images.shape == (2 * COPIES, 3, SIDE, SIDE)
    assert masks.shape == (2 * COPIES, SIDE, SIDE)
    assert masks.dtype == torch.bool
    for copy, flipped in ((0, []), (9, [-1]), (10, [-2])):
        assert torch.equal(images[copy::COPIES], batch[0].flip(flipped))
        assert torch.equal(masks[copy::COPIES], batch[1].flip(flipped))


def test_twelve_pixels_of_240() -> None:
    images = torch.zeros(1, 3, 240, 240)
    images[0, :, 100, 50] = 1
    warped, _ = augment(images, torch.zeros(1, 240, 240, dtype=torch.bool))
    row, column = divmod(int(warped[5, 0].argmax()), 240)
    assert (row, column) == (112, 62)


def test_one_image_does_not_depend_on_its_neighbours(batch: tuple) -> None:
    together, _ = augment(*batch)
    alone, _ = augment(batch[0][1:], batch[1][1:])
    assert torch.equal(together[COPIES:], alone)
