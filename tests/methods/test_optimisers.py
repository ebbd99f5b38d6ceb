"""How the methods are optimised, as published: nothing else would notice another number."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from recap.methods import _dra_backbone as dra_backbone
from recap.methods import _prompts as learned_prompts
from recap.methods import april_gan, dra, mvfa, uniadet
from recap.scoring.fit import fit_sources, fit_support

TRAINED_BY = {
    "mvfa": mvfa,
    "april_gan": april_gan,
    "uniadet": uniadet,
    "madclip": learned_prompts,
    "mediclip": learned_prompts,
    "dra": dra,
}
SMALL = {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}


@dataclass
class ReadyError(Exception):
    """What a method was about to be trained by."""

    optimiser: Any
    epochs: int
    batch_size: int
    schedule: Any


@pytest.fixture
def ready(peer_settings, make_support, phantoms, monkeypatch):
    """ready(method, preset, zero_shot): the fit, up to its first step."""

    def stop(model, loss, optimiser, count, job, *, epochs, schedule=None, bound=None):
        raise ReadyError(optimiser, epochs, job.options.batch_size, schedule)

    def make(method, preset="equal", zero_shot=False):
        monkeypatch.setattr(TRAINED_BY[method], "train", stop)
        monkeypatch.setattr(dra_backbone, "RESNET_CONFIG", {**dra_backbone.RESNET_CONFIG, **SMALL})
        encoder = {"random_weights": True} if method == "dra" else {}
        settings = peer_settings(method, preset, encoder=encoder)
        fit, given = (fit_sources, phantoms) if zero_shot else (fit_support, make_support(1, 1))
        with pytest.raises(ReadyError) as raised:
            fit(given, settings)
        return raised.value

    return make


@pytest.mark.parametrize(
    ("method", "preset", "zero_shot", "rate", "epochs", "batch_size"),
    [
        ("mvfa", "official", False, 1e-3, 50, 1),
        ("mvfa", "official", True, 1e-4, 50, 1),
        ("april_gan", "official", False, 1e-3, 50, 8),
        ("april_gan", "official", True, 1e-3, 15, 8),
        ("uniadet", "equal", False, 1e-3, 50, 8),
        ("uniadet", "equal", True, 1e-3, 15, 8),
        ("madclip", "equal", False, 1e-3, 50, 16),
        ("madclip", "official", False, 1e-3, 60, 16),
        ("mediclip", "equal", False, 1e-3, 50, 8),
        ("mediclip", "official", False, 1e-3, 200, 8),
    ],
)
def test_methods_on_clip_learn_by_adam(method, preset, zero_shot, rate, epochs, batch_size, ready):
    found = ready(method, preset, zero_shot)
    assert type(found.optimiser) is torch.optim.Adam  # AdamW is a kind of Adam to torch
    (group,) = found.optimiser.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (rate, (0.5, 0.999), 0)
    assert (found.epochs, found.batch_size, found.schedule) == (epochs, batch_size, None)


def test_dra_learns_by_steps_of_ten_epochs(ready):
    found = ready("dra")
    assert type(found.optimiser) is torch.optim.Adam
    (group,) = found.optimiser.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (2e-4, (0.9, 0.999), 1e-5)
    assert found.epochs == 30
    rates = [found.schedule(group["lr"], epoch) for epoch in (0, 9, 10, 19, 20)]
    assert rates == pytest.approx([2e-4, 2e-4, 2e-5, 2e-5, 2e-6])


@pytest.mark.parametrize(("preset", "given"), [("equal", {}), ("official", {"clip_norm": 0.5})])
def test_gradients_of_mvfa_are_clipped_to_a_length(
    preset, given, peer_settings, make_support, monkeypatch
):
    lengths = []

    class Watched(torch.optim.Adam):
        def step(self, *args):
            grads = [p.grad for group in self.param_groups for p in group["params"]]
            lengths.append(float(torch.stack([g.norm() for g in grads if g is not None]).norm()))
            return super().step(*args)

    monkeypatch.setattr(torch.optim, "Adam", Watched)
    for clip in (given, {"clip_norm": None}):
        options = {"epochs": 1, "batch_size": 22, **clip}
        fit_support(make_support(1, 1), peer_settings("mvfa", preset, options=options))
    clipped, free = lengths
    assert clipped == pytest.approx(given.get("clip_norm", 1.0), rel=1e-4)
    assert free > 1.01
