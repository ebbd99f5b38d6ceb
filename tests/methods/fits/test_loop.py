import pytest
import torch

import recap
from recap.methods.recap import teach
from recap.methods.recap.teach import epoch_order


def test_every_image_comes_once_per_epoch():
    order = epoch_order(range(30), seed=0, epoch=0)
    assert sorted(order) == list(range(30))
    assert order != sorted(order)


def test_order_is_a_function_of_seed_and_epoch():
    torch.manual_seed(1)
    first = epoch_order(range(30), 3, 4)
    torch.manual_seed(2)
    assert epoch_order(range(30), 3, 4) == first
    found = {tuple(epoch_order(range(30), seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(found) == 25


@pytest.mark.parametrize("seed", [0, 2**62, 2**63 - 1])
def test_any_seed_gives_an_order(seed):
    assert len(epoch_order(range(4), seed, epoch=49)) == 4


def test_images_that_teach_nothing_are_left_out():
    assert sorted(epoch_order([4, 7, 30], 0, 0)) == [4, 7, 30]


def test_a_long_gradient_is_cut_to_its_bound(arrays, tiny_settings, monkeypatch):
    """The parameters move by what Adam makes of gradients that are no longer than the bound."""
    lengths = []
    step = teach.Adam.step

    def watched(self, *args, **kwargs):
        gradients = [p.grad for p in self.param_groups[0]["params"] if p.grad is not None]
        lengths.append(torch.cat([g.flatten() for g in gradients]).norm().item())
        return step(self, *args, **kwargs)

    monkeypatch.setattr(teach.Adam, "step", watched)
    for bound in (None, 1e-3):
        recap.fit(**arrays, settings=tiny_settings(training={"epochs": 1, "clip_norm": bound}))
    free, bounded = lengths[: len(lengths) // 2], lengths[len(lengths) // 2 :]
    assert max(free) > 1e-3
    assert max(bounded) == pytest.approx(1e-3, rel=1e-3)
