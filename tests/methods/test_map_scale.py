"""Which normal images say how strongly maps are drawn, and without what."""

import pytest
import torch

from recap.methods.base import Output, Scorer
from recap.methods.fitting import MOST_IMAGES, scale_of_images
from recap.methods.images import LabelledImages

NORMAL, PX = 40, 4


def some_images(count):
    """Normal images of one grey each, darker in the first domain, then two abnormal ones."""
    grey = torch.cat([torch.linspace(0, 1, count), torch.tensor([9.0, 9.0])])
    pixels = grey.view(-1, 1, 1, 1).expand(-1, 3, PX, PX)
    index = torch.arange(len(grey))
    nothing = torch.zeros(len(grey), PX, PX, dtype=torch.bool)
    abnormal, domain = index >= count, (index >= count // 2).long()
    domains = ("dark", "bright")
    return LabelledImages(
        pixels.__getitem__, abnormal, nothing, abnormal, index, domain, domains, index * 0
    )


class Grey(Scorer):
    """A model whose map is the image's own grey; it remembers two rows of each image."""

    def __init__(self, owner):
        super().__init__()
        self.owner, self.seen, self.left, self.flipped = owner, [], [], 0
        self.register_buffer("memory", None if owner is None else owner.float()[:, None])

    device = torch.device("cpu")

    def forward(self, pixels):
        self.seen.append(float(pixels[0, 0, 0, 0]))
        self.left.append(None if self.memory is None else set(self.memory[:, 0].tolist()))
        return Output(pixels[:, 0, 0, 0], pixels[:, 0])


@pytest.mark.parametrize("memory", [False, True])
def test_images_of_all_domains_have_a_say_each_without_its_own_rows(memory):
    model = Grey(torch.arange(NORMAL).repeat_interleave(2) if memory else None)
    low, high = scale_of_images(model, some_images(NORMAL))
    assert len(model.seen) == MOST_IMAGES
    assert sum(grey > 0.5 for grey in model.seen) == MOST_IMAGES // 2
    assert 0.8 < low < 0.95 < high < 1.2
    if memory:
        own = [round(grey * (NORMAL - 1)) for grey in model.seen]
        everything = {float(number) for number in range(NORMAL)}
        assert model.left == [everything - {float(number)} for number in own]
        assert model.memory.shape == (2 * NORMAL, 1), "the model itself is as it was"


@pytest.mark.parametrize("axes", [(-1,), (2, 3)])
def test_a_single_image_is_shown_mirrored(axes):
    shown = []

    class Asked(Grey):
        mirrored = axes

        def forward(self, pixels):
            shown.append(pixels)
            return super().forward(pixels)

    images = some_images(1)
    ramp = torch.arange(3.0 * PX * PX).view(3, PX, PX)
    object.__setattr__(images, "pixels", lambda index: ramp)
    scale_of_images(Asked(torch.zeros(3, dtype=torch.long)), images)
    assert torch.equal(shown[0][0], ramp.flip(*(a - 1 if a > 0 else a for a in axes)))
