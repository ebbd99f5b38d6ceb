"""Made-up lesions: where they are, what they look like, and what they leave alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.data.lesions import (
    LESIONS,
    VISIBLE,
    Region,
    cut_paste,
    draw_region,
    intensity_change,
    source_deformation,
    visibly_changed,
)

SIZE = 48
SEEDS = st.integers(0, 2**32)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def image(seed=0, size=SIZE):
    return torch.rand(3, size, size, generator=generator(seed))


def disc(row, column, radius_px, size=SIZE):
    places = torch.arange(float(size))
    distance = torch.hypot(places[:, None] - row, places - column)
    return Region(distance / radius_px, (float(row), float(column)))


@settings(deadline=None)
@given(SEEDS)
def test_what_is_outside_the_region_stays(seed):
    original, draws = image(1), generator(seed)
    region = draw_region(original, draws)
    for lesion in LESIONS:
        changed = lesion(original, image(2), region, draws)
        assert torch.equal(changed[:, region.radius >= 1], original[:, region.radius >= 1])
        assert 0 <= float(changed.min()) <= float(changed.max()) <= 1


@settings(deadline=None)
@given(SEEDS)
def test_regions_are_on_tissue(seed):
    dark = torch.zeros(3, SIZE, SIZE)
    dark[:, 10:20, 30:40] = 0.7
    row, column = draw_region(dark, generator(seed)).centre_px
    assert 10 <= row < 20
    assert 30 <= column < 40


def test_an_image_without_tissue_has_regions_too():
    region = draw_region(torch.zeros(3, SIZE, SIZE), generator())
    assert (region.radius < 1).any()
    assert float(region.radius.min()) == 0


def test_regions_have_the_sizes_they_should():
    sides = []
    for seed in range(300):
        inside = draw_region(image(1, 100), generator(seed)).radius < 1
        sides.append(int(inside.any(1).sum()))
    assert 8 <= min(sides) < 25  # never smaller than 2 × 0.05 of the side, cut by the border
    assert 35 < max(sides) <= 57


def test_a_pasted_piece_is_of_the_donor():
    original, donor = torch.zeros(3, SIZE, SIZE), torch.full((3, SIZE, SIZE), 0.8)
    changed = cut_paste(original, donor, disc(20, 20, 10), generator())
    assert changed[:, 20, 20].tolist() == pytest.approx([0.8] * 3)
    # Half of the feather's way from the border: radius 0.95.
    soft = cut_paste(original, donor, disc(20, 20, 100 / 9.5), generator())
    assert soft[0, 20, 30].item() == pytest.approx(0.4, rel=1e-5)
    patch = cut_paste(image(1), image(2), disc(20, 20, 5), generator())[:, 20, 20]
    assert (image(2).flatten(1).T - patch).abs().amax(1).min() == 0


def test_an_intensity_change_has_a_gaussian_profile():
    original = torch.full((3, SIZE, SIZE), 0.5)
    signs = set()
    for seed in range(20):
        change = intensity_change(original, original, disc(24, 24, 20), generator(seed)) - 0.5
        middle = float(change[0, 24, 24])
        assert 0.2 <= abs(middle) <= 0.5  # clipped to 0..1 from at most 0.6
        signs.add(middle > 0)
        if abs(middle) < 0.5:
            assert float(change[0, 24, 34]) == pytest.approx(middle * 0.606531, rel=1e-4)
    assert signs == {True, False}


def test_a_deformation_looks_up_nearer_to_the_middle():
    """On a ramp the value is the position that was looked up."""
    ramp = (torch.arange(SIZE) / SIZE).expand(3, SIZE, SIZE)
    draws = generator(5)
    strength = 0.5 + float(torch.rand((), generator=generator(5)))
    changed = source_deformation(ramp, ramp, disc(24, 24, 16), draws)
    for column in (12, 20, 24, 29, 36):
        part = min(abs(column - 24) / 16, 1) ** strength
        looked_up = 24 + (column - 24) * part
        assert float(changed[0, 24, column]) == pytest.approx(looked_up / SIZE, abs=1e-5)
    assert float(changed[0, 24, 43]) == pytest.approx(43 / SIZE)


def test_a_change_is_seen_from_a_fiftieth_on():
    changed = image(1)
    changed[2, 5, 6] += 1.1 * VISIBLE
    changed[0, 7, 8] -= 0.9 * VISIBLE
    assert visibly_changed(changed, image(1)).nonzero().tolist() == [[5, 6]]
