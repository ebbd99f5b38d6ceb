"""Which normal images say how strongly maps are drawn."""

from types import SimpleNamespace

import pytest
import torch

from recap.methods.images import LabelledImages
from recap.methods.map_scale import (
    MOST_IMAGES,
    held_out_scale,
    scale_of_images,
    scale_without_own_rows,
)

NORMAL, PX = 40, 4


@pytest.fixture
def images():
    """Forty normal images of one grey each, darker in the first domain, then two abnormal ones."""
    grey = torch.cat([torch.linspace(0, 1, NORMAL), torch.tensor([9.0, 9.0])])
    pixels = grey.view(-1, 1, 1, 1).expand(-1, 3, PX, PX)
    index = torch.arange(len(grey))
    nothing = torch.zeros(len(grey), PX, PX, dtype=torch.bool)
    abnormal, domain = index >= NORMAL, (index >= NORMAL // 2).long()
    return LabelledImages(
        pixels.__getitem__, abnormal, nothing, abnormal, index, domain, ("dark", "bright")
    )


class Grey:
    """A model whose map is the image's own grey."""

    device = torch.device("cpu")
    memory = torch.zeros(NORMAL, 2)

    def __init__(self):
        self.seen = []

    def __call__(self, pixels):
        self.seen.append(float(pixels[0, 0, 0, 0]))
        return SimpleNamespace(map=pixels[:, 0])


@pytest.mark.parametrize("memory", [False, True])
def test_images_of_all_domains_have_a_say(images, memory):
    model = Grey()
    low, high = (
        scale_without_own_rows(model, images, torch.arange(NORMAL))
        if memory
        else scale_of_images(model, images)
    )
    assert len(model.seen) == MOST_IMAGES
    assert sum(grey > 0.5 for grey in model.seen) == MOST_IMAGES // 2
    assert 0.8 < low < 0.95 < high < 1.2


def test_held_out_images_are_spread_too():
    tokens = torch.arange(NORMAL).float().view(-1, 1, 1)
    seen = []

    def map_of(queries, memory):
        assert float(queries) not in memory
        seen.append(float(queries))
        return queries

    held_out_scale(tokens, lambda: tokens[:1], tokens[:, 0], torch.arange(NORMAL), map_of)
    assert len(seen) == MOST_IMAGES
    assert max(seen) > 0.9 * NORMAL
