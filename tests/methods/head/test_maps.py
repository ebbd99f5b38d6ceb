"""From the patch grid to pixels: the published resize, and maps that line up with the image."""

import copy

import numpy as np
import pytest
import slow_model
import torch
import torch.nn.functional as F
from heads import adapt, remember
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recap.encoders.vit import Encoder
from recap.methods.recap.maps import interpolation_matrix, upsample
from recap.methods.recap.regimes import build
from recap.methods.recap.settings import Upsample
from recap.methods.registry import resolve_settings

MODES: tuple[Upsample, ...] = ("centres", "corners")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("grid", "size_px"), [(5, 70), (3, 45), (2, 31), (5, 83)])
def test_maps_against_loops(mode: Upsample, grid: int, size_px: int) -> None:
    values = torch.randn(2, grid * grid, dtype=torch.float64)
    maps = upsample(values, size_px, 14, mode)
    for seen, patches in zip(maps, values.tolist(), strict=True):
        expected = slow_model.upsampled(patches, size_px, 14, mode)
        np.testing.assert_allclose(seen.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(("grid", "size_px"), [(17, 240), (5, 70)])
def test_corners_are_the_published_resize_of_two_logits(grid: int, size_px: int) -> None:
    """Upsampling φ and taking σ equals upsampling both logits and taking the softmax."""
    logits = 10 * torch.randn(3, grid * grid, 2)
    two = logits.transpose(1, 2).unflatten(-1, (grid, grid))
    resized = F.interpolate(two, (size_px, size_px), mode="bilinear", align_corners=True)
    expected = resized.softmax(dim=1)[:, 1]
    seen = torch.sigmoid(upsample(logits[..., 1] - logits[..., 0], size_px, 14, "corners"))
    torch.testing.assert_close(seen, expected, atol=2e-5, rtol=0)


@given(
    grid=st.integers(2, 40),
    patch_px=st.integers(4, 32),
    rest=st.integers(0, 31),
    mode=st.sampled_from(MODES),
)
@settings(deadline=None)
def test_every_pixel_is_a_mean_of_patches(
    grid: int, patch_px: int, rest: int, mode: Upsample
) -> None:
    size_px = grid * patch_px + rest % patch_px
    matrix = interpolation_matrix(grid, size_px, patch_px, mode)
    assert matrix.shape == (size_px, grid)
    assert (matrix >= 0).all()
    torch.testing.assert_close(matrix.sum(dim=1), torch.ones(size_px), atol=1e-5, rtol=0)
    assert ((matrix > 0).sum(dim=1) <= 2).all()


def one_hot_maps(grid: int, size_px: int, mode: Upsample) -> Tensor:
    """(R, S, S): for every patch the map that it gives alone."""
    return upsample(torch.eye(grid * grid), size_px, 14, mode)


def miss_px(maps: Tensor, patches: list[int]) -> float:
    """The worst distance from a patch's true centre to the nearest pixel of the highest value.

    A border patch also stands for the pixels outside it, so its peak may be a plateau.
    """
    worst = 0.0
    for axis, places in ((2, [p // 17 for p in patches]), (1, [p % 17 for p in patches])):
        for line, place in zip(maps.amax(dim=axis), places, strict=True):
            peaks = (line >= line.max() - 1e-6).nonzero().flatten()
            worst = max(worst, (peaks - (14 * place + 6.5)).abs().min().item())
    return worst


def test_a_patch_peaks_at_its_centre() -> None:
    # 240 = 17 · 14 + 2: no patch covers the last two pixels.
    assert miss_px(one_hot_maps(17, 240, "centres"), list(range(289))) <= 0.5


def test_corners_do_not_line_up() -> None:
    """The published stretch misses by up to half a patch; else the two modes were one."""
    assert miss_px(one_hot_maps(17, 240, "corners"), list(range(289))) > 6


def test_a_moving_dot_moves_by_whole_patches() -> None:
    maps = one_hot_maps(17, 240, "centres").double()
    pixel = torch.arange(240, dtype=torch.float64)
    mass = maps.sum(dim=(1, 2))
    rows = (maps.sum(dim=2) @ pixel / mass).reshape(17, 17)
    columns = (maps.sum(dim=1) @ pixel / mass).reshape(17, 17)
    inner = slice(1, 16)  # the border patches also stand for what lies outside them
    centres = (14 * torch.arange(17, dtype=torch.float64) + 6.5)[inner].expand(15, 15)
    torch.testing.assert_close(rows[inner, inner], centres.T, atol=1e-4, rtol=0)
    torch.testing.assert_close(columns[inner, inner], centres, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("edge_px", "miss"), [(0.0, 0.5), (10.0, 6.5)])
@torch.no_grad()
def test_a_dot_in_the_image_is_where_the_map_says(
    tiny_encoder: Encoder, edge_px: float, miss: float
) -> None:
    """From pixels to the map of a whole model: a white patch on black, moved about. Where maps
    follow edges the peak may be anywhere on the patch, which is all white."""
    vit = copy.deepcopy(tiny_encoder.model)
    encoder = Encoder(vit, name="tiny", checksum="", input_px=240, layers=(1,))
    chosen = {"name": "tiny", "input_px": 240, "layers": (1,)}
    settings = resolve_settings(encoder=chosen, model={"map_edge_px": edge_px})
    model = build(encoder, settings, "nearest")
    black = torch.zeros(1, 3, 240, 240)
    remember(model, adapt(model, black))
    patches = [0, 16, 272, 288, *range(9, 280, 16)]  # corners, and every row and column
    images = black.repeat(len(patches), 1, 1, 1)
    for image, patch in zip(images, patches, strict=True):
        top, left = 14 * (patch // 17), 14 * (patch % 17)
        image[:, top : top + 14, left : left + 14] = 1
    assert {p // 17 for p in patches} == {p % 17 for p in patches} == set(range(17))
    assert miss_px(model(images).map, patches) <= miss
