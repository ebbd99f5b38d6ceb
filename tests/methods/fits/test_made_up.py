"""Lesions on copies of normal images: each its own, of every kind, and seen."""

import torch

from recap.data.lesions import VISIBLE
from recap.methods.recap import lessons as made_up
from recap.methods.recap.lessons import SMALLEST, make_lesions

SIZE = 48


def pictures(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, SIZE, SIZE, generator=generator)


def test_every_image_gets_a_lesion_of_its_own():
    pixels = pictures(2).repeat_interleave(3, dim=0)  # three equal copies of each
    changed, masks = make_lesions(pixels, copies=3, seed=1)
    assert changed.shape == pixels.shape
    assert torch.equal(masks, (changed - pixels).abs().amax(dim=1) > VISIBLE)
    assert (masks.float().mean(dim=(1, 2)) >= SMALLEST).all()
    assert len({mask.numpy().tobytes() for mask in masks}) == 6
    assert 0 <= float(changed.min()) <= float(changed.max()) <= 1


def test_the_seed_decides_all():
    torch.manual_seed(5)  # the state of the global generator must not matter
    one, again, other = (make_lesions(pictures(4), 2, seed)[0] for seed in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_kinds_take_turns_and_donors_are_other_images(monkeypatch):
    """Two images of three copies each: nothing is pasted from a copy of the same one."""
    pixels, seen = pictures(6), []

    def number_of(picture):
        return next(i for i in range(6) if torch.equal(pixels[i], picture))

    def recording(kind):
        def lesion(image, donor, region, generator):
            seen.append((kind, number_of(image), number_of(donor)))
            return 1 - image

        return lesion

    monkeypatch.setattr(made_up, "LESIONS", tuple(recording(kind) for kind in "abc"))
    make_lesions(pixels, 3, seed=0)
    assert [kind for kind, _, _ in seen] == list("abcabc")
    assert all(image // 3 != donor // 3 for _, image, donor in seen)
    assert len({donor for _, _, donor in seen}) > 1


def test_a_single_image_is_its_own_donor():
    changed, masks = make_lesions(pictures(1), 1, seed=0)
    assert masks.any()
    assert not torch.equal(changed, pictures(1))


def test_an_image_of_nothing_is_left_as_it_is_after_some_tries(monkeypatch):
    tries = []

    def invisible(image, donor, region, generator):
        tries.append(1)
        return image

    monkeypatch.setattr(made_up, "LESIONS", (invisible,))
    _, masks = make_lesions(torch.zeros(1, 3, SIZE, SIZE), 1, seed=0)
    assert len(tries) == made_up.TRIES
    assert not masks.any()
