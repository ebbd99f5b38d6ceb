"""Adapters that start at the principal directions of the support's tokens."""

import pytest
import torch

import recap
from recap.errors import SettingsError
from recap.methods.recap import teach


@pytest.fixture
def started(monkeypatch):
    """The first adapter of every fit, as training gets it."""
    starts, original = [], teach.train

    def train(model, *rest):
        starts.append(model.maps.adapters[0].down.weight.detach().clone())
        return original(model, *rest)

    monkeypatch.setattr(teach, "train", train)
    return starts


@pytest.mark.parametrize("branches", ["both", "taught"])
def test_the_start_comes_from_the_support_whatever_the_seed(
    branches, arrays, tiny_settings, started
):
    for seed in (0, 1):
        head = {"adapter_start": "principal", "branches": branches}
        settings = tiny_settings(seed=seed, model=head, training={"epochs": 1})
        recap.fit(**arrays, settings=settings)
    one, other = started
    assert torch.equal(one, other)
    half = len(one) // 2
    assert torch.equal(one[half:], -one[:half])


@pytest.mark.parametrize("masks", [True, False])
def test_where_masks_teach_and_nowhere_else(masks, arrays, tiny_settings, started):
    given = arrays | ({} if masks else {"masks": None})
    for seed in (0, 1):
        head = {"adapter_start": "by_teacher", "branches": "taught"}
        settings = tiny_settings(seed=seed, model=head, training={"epochs": 1})
        assert (recap.fit(**given, settings=settings).card.variant == "masks") == masks
    assert torch.equal(*started) == masks


def test_by_default_it_depends_on_the_seed(arrays, tiny_settings, started):
    for seed in (0, 1):
        recap.fit(**arrays, settings=tiny_settings(seed=seed, training={"epochs": 1}))
    assert not torch.equal(*started)


def test_it_needs_side_adapters(arrays, tiny_settings):
    head = {"adapter_start": "principal", "write_back": True}
    with pytest.raises(SettingsError, match="needs side adapters"):
        recap.fit(**arrays, settings=tiny_settings(model=head))
