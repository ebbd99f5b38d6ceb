"""What MediCLIP learns from: which lesion how often, on which image; a seed decides all."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.data.lesions import VISIBLE, draw_region
from recap.methods import mediclip as synthetic
from recap.methods.images import LabelledImages
from recap.methods.mediclip import TASKS, Task, draw_variant, identity, synthesise, variant_bank

SIZE = 48
SEEDS = st.integers(0, 2**32)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def image(seed=0, size=SIZE):
    return torch.rand(3, size, size, generator=generator(seed))


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
        index * 0,
    )


@settings(deadline=None)
@given(SEEDS)
def test_the_mask_is_what_changed(seed):
    original = image(1)
    changed, mask = synthesise(original, image(2), generator(seed))
    difference = (changed - original).abs()
    for row, column in [(5, 5), (20, 30), (40, 11), (24, 24)]:
        assert bool(mask[row, column]) == (float(difference[:, row, column].max()) > VISIBLE)


def test_nothing_is_nothing():
    assert torch.equal(
        identity(image(), image(1), draw_region(image(), generator()), generator()), image()
    )


def test_each_task_is_drawn_as_often_in_one_place_or_two_of_its_own_size(monkeypatch):
    drawn = []

    def recording(index):
        def lesion(original, donor, region, draws):
            drawn.append((index, region.radius))
            return original

        return lesion

    tasks = tuple(Task(recording(i), (0.1 * (i + 1),) * 2) for i in range(4))
    monkeypatch.setattr(synthetic, "TASKS", tasks)
    draws, counts, places = generator(), dict.fromkeys(range(4), 0), []
    for _ in range(400):
        drawn.clear()
        synthesise(image(), image(1), draws)
        index = drawn[0][0]
        assert all(own == index for own, _ in drawn)
        counts[index] += 1
        places.append(len(drawn))
        # The nearest border is half a side away from the middle.
        inside = (drawn[0][1] < 1).sum()
        assert inside <= (2 * 0.1 * (index + 1) * SIZE + 2) ** 2
    assert all(70 <= count <= 130 for count in counts.values())
    assert set(places) == {1, 2}
    assert 160 <= places.count(2) <= 240


def test_sizes_are_the_published_ones():
    sides = [tuple(2 * half for half in task.half_sides) for task in TASKS]
    assert sides[:3] == [(0.1, 0.6), (0.3, 0.8), (0.2, 0.6)]


def test_strengths_are_the_published_ones():
    assert [task.lesion.keywords for task in TASKS[1:3]] == [
        {"amplitudes": (0.4, 0.6)},
        {"strengths": (0.41, 3.0)},
    ]
    for strength, factor in zip((0.41, 3.0), (2**0.5, 2**2), strict=True):
        assert 1 + strength == pytest.approx(factor, abs=0.01)


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
