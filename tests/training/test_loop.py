from collections import Counter

import pytest
import torch

import recap
from recap.methods.training import TrainingSet, epoch_order
from recap.training import loop


def training_set(sizes, teaching=None):
    domain = torch.cat([torch.full((n,), i) for i, n in enumerate(sizes)])
    blank = torch.zeros(len(domain), dtype=torch.bool)
    teaches = ~blank if teaching is None else torch.isin(domain, torch.tensor(teaching))
    return TrainingSet(None, blank, blank, blank, torch.arange(len(domain)), domain, teaches)


def test_every_image_comes_once_per_epoch():
    order = epoch_order(training_set([30]), seed=0, epoch=0, balanced=False)
    assert sorted(order) == list(range(30))
    assert order != sorted(order)


@pytest.mark.parametrize("balanced", [False, True])
def test_order_is_a_function_of_seed_and_epoch(balanced):
    data = training_set([20, 10])

    def order(seed, epoch):
        return tuple(epoch_order(data, seed, epoch, balanced))

    torch.manual_seed(1)
    first = order(3, 4)
    torch.manual_seed(2)
    assert order(3, 4) == first
    assert len({order(seed, epoch) for seed in range(5) for epoch in range(5)}) == 25


@pytest.mark.parametrize("seed", [0, 2**62, 2**63 - 1])
def test_any_seed_gives_an_order(seed):
    assert len(epoch_order(training_set([4]), seed, epoch=49, balanced=False)) == 4


def test_balanced_sources_are_drawn_alike():
    sizes = [400, 40, 8]
    data = training_set(sizes)
    drawn = Counter()
    for epoch in range(10):
        order = epoch_order(data, 0, epoch, balanced=True)
        assert len(order) == sum(sizes)
        drawn.update(data.domain[order].tolist())
    shares = [drawn[i] / drawn.total() for i in range(3)]
    assert shares == pytest.approx([1 / 3] * 3, abs=0.04)  # 4 σ of 4480 draws is 0.028


@pytest.mark.parametrize("balanced", [False, True])
def test_images_that_teach_nothing_are_left_out(balanced):
    data = training_set([5, 30, 10], teaching=[0, 2])
    order = epoch_order(data, 0, 0, balanced)
    assert len(order) == 15
    assert 1 not in data.domain[order]


def test_unbalanced_sources_keep_their_share():
    data = training_set([400, 40])
    order = epoch_order(data, 0, 0, balanced=False)
    assert int((data.domain[order] == 1).sum()) == 40


def test_a_long_gradient_is_cut_to_its_bound(arrays, tiny_settings, monkeypatch):
    """The parameters move by what Adam makes of gradients that are no longer than the bound."""
    lengths = []
    step = loop.Adam.step

    def watched(self, *args, **kwargs):
        gradients = [p.grad for p in self.param_groups[0]["params"] if p.grad is not None]
        lengths.append(torch.cat([g.flatten() for g in gradients]).norm().item())
        return step(self, *args, **kwargs)

    monkeypatch.setattr(loop.Adam, "step", watched)
    for bound in (None, 1e-3):
        recap.fit(**arrays, settings=tiny_settings(training={"epochs": 1, "clip_norm": bound}))
    free, bounded = lengths[: len(lengths) // 2], lengths[len(lengths) // 2 :]
    assert max(free) > 1e-3
    assert max(bounded) == pytest.approx(1e-3, rel=1e-3)
