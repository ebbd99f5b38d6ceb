"""Maps that follow edges: the filter against loops, what it keeps, and what it does to a map."""

import numpy as np
import pytest
import slow_model
import torch
from torch import Tensor

from recap.methods.recap.maps import (
    CELL_PX,
    PENALTY,
    Drawing,
    Edges,
    cell_count,
    cell_means,
    upsample,
)
from recap.scoring.regions import find_regions

REACH_PX = 10.0


def cell_overlap(cell: int, start: float, end: float) -> float:
    """How much of a cell of width 1 lies between two places."""
    return max(0.0, min(cell + 1, end) - max(cell, start))


def slow_window(values: np.ndarray, row: int, column: int, reach: float) -> float:
    """Mean over a square window around a cell's centre, cells that it holds in part in part; beyond
    the border there are copies of the outer cells."""
    total = weights = 0.0
    last, far = len(values) - 1, int(reach) + 1
    for i in range(row - far, row + far + 1):
        down = cell_overlap(i, row + 0.5 - reach, row + 0.5 + reach)
        for j in range(column - far, column + far + 1):
            weight = down * cell_overlap(j, column + 0.5 - reach, column + 0.5 + reach)
            total += weight * values[min(max(i, 0), last), min(max(j, 0), last)]
            weights += weight
    return total / weights


def slow_follow(grey: np.ndarray, drawn: np.ndarray, reach_px: float) -> np.ndarray:
    """The guided filter, cell by cell and pixel by pixel."""
    size, count = len(grey), len(drawn)
    width = size // count
    cells = grey.reshape(count, width, count, width).mean(axis=(1, 3))
    reach = reach_px / width
    slope, offset = np.zeros_like(drawn), np.zeros_like(drawn)
    for i in range(count):
        for j in range(count):
            mean_i, mean_p, mean_ip, mean_ii = (
                slow_window(x, i, j, reach) for x in (cells, drawn, cells * drawn, cells * cells)
            )
            slope[i, j] = (mean_ip - mean_i * mean_p) / (mean_ii - mean_i**2 + PENALTY)
            offset[i, j] = mean_p - slope[i, j] * mean_i
    # Cells are to pixels what patches are: their values stand at their middle.
    followed = [
        slow_window(slope, i, j, reach) * cells[i, j] + slow_window(offset, i, j, reach)
        for i in range(count)
        for j in range(count)
    ]
    return slow_model.upsampled(followed, size, width, "centres")


@pytest.mark.parametrize("reach_px", [4.0, 10.0])
def test_the_filter_against_loops(reach_px: float) -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(1, 3, 40, 40, generator=generator, dtype=torch.float64)
    drawn = torch.rand(1, 10, 10, generator=generator, dtype=torch.float64)
    seen = Edges(pixels, reach_px).follow(drawn)
    expected = slow_follow(pixels[0].mean(dim=0).numpy(), drawn[0].numpy(), reach_px)
    np.testing.assert_allclose(seen[0].numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("size_px", [70, 83, 224, 240, 518])
def test_any_size_has_cells(size_px: int) -> None:
    count = cell_count(size_px)
    assert abs(size_px / count - CELL_PX) < 0.5
    means = cell_means(size_px, count)
    torch.testing.assert_close(means.sum(dim=1), torch.ones(count, dtype=torch.float64))
    followed = Edges(torch.rand(1, 3, size_px, size_px), REACH_PX).follow(
        torch.rand(1, count, count)
    )
    assert followed.shape == (1, size_px, size_px)


def test_maps_on_cells_are_means_of_maps_on_pixels() -> None:
    values = torch.rand(3, 25)
    pixels = upsample(values, 72, 14, "centres", 6.0)
    cells = upsample(values, 72, 14, "centres", 6.0, cells=18)
    torch.testing.assert_close(
        cells, pixels.unflatten(1, (18, 4)).unflatten(3, (18, 4)).mean((2, 4))
    )


@pytest.mark.parametrize("brightness", [0.0, 0.3, 1.0])
def test_a_flat_map_stays_as_it_is_and_a_flat_image_smooths(brightness: float) -> None:
    noise = torch.rand(1, 3, 72, 72)
    flat = torch.full((1, 18, 18), 0.4)
    torch.testing.assert_close(
        Edges(noise, REACH_PX).follow(flat), torch.full((1, 72, 72), 0.4), atol=1e-4, rtol=0
    )
    drawn = torch.rand(1, 18, 18)
    followed = Edges(torch.full_like(noise, brightness), REACH_PX).follow(drawn)
    assert followed.std() < drawn.std() / 2
    assert drawn.min() <= followed.min() <= followed.max() <= drawn.max()


def test_it_is_linear_so_that_parts_add_up() -> None:
    pixels, parts = torch.rand(1, 3, 72, 72).double(), torch.rand(4, 18, 18).double()
    edges = Edges(pixels, REACH_PX)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4]).double().view(4, 1, 1)
    together = edges.follow((weights * parts).sum(dim=0, keepdim=True))[0]
    torch.testing.assert_close((weights * edges.follow(parts)).sum(dim=0), together)


def soft_disc(size: int, rim: float) -> Tensor:
    place = torch.arange(size) - size / 2 + 0.5
    distance = (place[:, None].square() + place.square()).sqrt()
    return torch.sigmoid((size / 4 - distance) / rim)


def test_the_rim_of_a_lesion_becomes_the_rim_in_the_image() -> None:
    truth = soft_disc(120, 0.1) > 0.5
    image = 0.3 + 0.4 * truth.float().expand(1, 3, 120, 120)
    blurred = soft_disc(120, 8.0)
    edges = Edges(image, REACH_PX)
    drawn = (cell_means(120, 30).float() @ blurred @ cell_means(120, 30).float().T)[None]
    followed = edges.follow(drawn)[0]
    rim = 4
    near = (soft_disc(120, 1.0) - 0.5).abs() < 0.5 - 1 / (1 + np.exp(rim))
    apart = [map[near & truth].mean() - map[near & ~truth].mean() for map in (blurred, followed)]
    assert apart[1] > 1.8 * apart[0]


def test_images_do_not_see_each_other() -> None:
    pixels, drawn = torch.rand(3, 3, 72, 72), torch.rand(3, 18, 18)
    together = Edges(pixels, REACH_PX).follow(drawn)
    for i in range(3):
        alone = Edges(pixels[i : i + 1], REACH_PX).follow(drawn[i : i + 1])
        torch.testing.assert_close(alone[0], together[i], atol=1e-6, rtol=0)


def test_finished_maps_are_in_range_and_without_a_reach_untouched() -> None:
    pixels, drawn = torch.rand(1, 3, 72, 72), (torch.rand(1, 18, 18) > 0.5).float()
    finished = Drawing(72, 14, "centres", edge_px=REACH_PX).finish(drawn, pixels)
    assert finished.shape == (1, 72, 72)
    assert 0 <= finished.min() <= finished.max() <= 1
    assert Drawing(72, 14, "centres").finish(drawn, pixels) is drawn


def test_noise_of_pixels_does_not_tear_a_region_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = 0.5 + 0.15 * torch.randn(1, 3, 120, 120, generator=generator)
    means = cell_means(120, 30).float()
    drawn = (means @ soft_disc(120, 8.0) @ means.T)[None]
    followed = Edges(noise, REACH_PX).follow(drawn)[0].numpy()
    assert len(find_regions(followed, 0.5)) == 1
