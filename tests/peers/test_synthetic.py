"""Synthetic anomalies: where they are, what they leave alone, and that a seed decides all."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.peers import synthetic
from recap.peers.images import LabelledImages
from recap.peers.synthetic import (
    TASKS,
    VISIBLE,
    Region,
    cut_paste,
    draw_region,
    draw_variant,
    identity,
    intensity_change,
    source_deformation,
    synthesise,
    variant_bank,
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


def labelled(count=4, domains=("",), abnormal=()):
    pictures = torch.stack([image(i) for i in range(count)])
    index = torch.arange(count)
    return LabelledImages(
        pictures.__getitem__,
        torch.tensor([i in abnormal for i in range(count)]),
        torch.zeros(count, SIZE, SIZE, dtype=torch.bool),
        torch.ones(count, dtype=torch.bool),
        index,
        index % len(domains),
        domains,
    )


@settings(deadline=None)
@given(SEEDS)
def test_what_is_outside_the_region_stays(seed):
    original, draws = image(1), generator(seed)
    region = draw_region(original, draws)
    for task in TASKS:
        changed = task(original, image(2), region, draws)
        assert torch.equal(changed[:, region.radius >= 1], original[:, region.radius >= 1])
        assert 0 <= float(changed.min()) <= float(changed.max()) <= 1


@settings(deadline=None)
@given(SEEDS)
def test_the_mask_is_what_changed(seed):
    original = image(1)
    changed, mask = synthesise(original, image(2), generator(seed))
    difference = (changed - original).abs()
    for row, column in [(5, 5), (20, 30), (40, 11), (24, 24)]:
        assert bool(mask[row, column]) == (float(difference[:, row, column].max()) > VISIBLE)
    # A turned box of at most 0.4 of the side fits into a square of 0.57 of it.
    rows = mask.any(1).nonzero().flatten()
    assert len(rows) == 0 or int(rows[-1] - rows[0]) <= 0.57 * SIZE + 1


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


def test_nothing_is_nothing():
    assert torch.equal(identity(image(), image(1), disc(1, 1, 5), generator()), image())


def test_each_task_is_drawn_as_often(monkeypatch):
    counts = dict.fromkeys(range(4), 0)

    def counting(index):
        def task(original, donor, region, draws):
            counts[index] += 1
            return original

        return task

    monkeypatch.setattr(synthetic, "TASKS", tuple(counting(i) for i in range(4)))
    draws = generator()
    for _ in range(400):
        synthesise(image(), image(1), draws)
    assert all(70 <= count <= 130 for count in counts.values())


def test_donors_are_other_normal_images_of_the_domain(monkeypatch):
    images = labelled(6, ("a", "b"), abnormal=(2,))
    seen = set()

    def record(original, donor, draws):
        seen.add(next(i for i in range(6) if torch.equal(images.pixels(i), donor)))
        return original, original[0] > 2

    monkeypatch.setattr(synthetic, "synthesise", record)
    for seed in range(20):
        draw_variant(images, 0, generator(seed))
    assert seen == {4}  # not itself, not the abnormal 2, not 1, 3 or 5 of the other domain


def test_a_single_image_is_its_own_donor():
    images = labelled(1)
    changed, mask = draw_variant(images, 0, generator(1))
    assert changed.shape == (3, SIZE, SIZE)
    assert mask.shape == (SIZE, SIZE)


def test_a_bank_is_of_normal_images_alone_and_fixed():
    images = labelled(4, abnormal=(1, 3))
    bank = variant_bank(images, 5, seed=7)
    assert len(bank) == 10
    assert bank.origin.tolist() == [0] * 5 + [2] * 5
    assert bank.has_mask.all()
    assert torch.equal(bank.abnormal, bank.masks.flatten(1).any(1))
    assert bank.abnormal.any()
    assert not bank.abnormal.all()
    again = variant_bank(images, 5, seed=7)
    assert all(torch.equal(bank.pixels(i), again.pixels(i)) for i in range(10))
    other = variant_bank(images, 5, seed=8)
    assert not all(torch.equal(bank.pixels(i), other.pixels(i)) for i in range(10))


def test_masks_of_a_bank_belong_to_its_pixels():
    images = labelled(2)
    bank = variant_bank(images, 4, seed=0)
    for index in range(8):
        original = images.pixels(int(bank.origin[index]))
        changed = (bank.pixels(index) - original).abs().amax(0) > VISIBLE
        assert torch.equal(changed, bank.masks[index])
