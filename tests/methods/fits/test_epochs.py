"""Steps, what is said of them, and what is kept of them."""

import math

import pytest
import torch

from recap.errors import TrainingError
from recap.methods import training as training_module
from recap.methods.checkpoint import Checkpoint
from recap.methods.training import in_batches, train_epochs


class Slope(torch.nn.Module):
    """One number, pulled towards each image's own."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))


def fit(model, *, count=5, size=2, rounds=2, said=None, checkpoint=None, loss=None, stop_at=None):
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    seen = []

    def gradients(indices, number):
        if number == stop_at:
            raise KeyboardInterrupt
        seen.append((number, indices))
        aim = torch.tensor(indices, dtype=torch.float32)
        value = ((model.weight - aim) ** 2).mean() if loss is None else loss(model, number)
        value.backward()
        return {"loss": float(value.detach()), "images": float(len(indices))}

    last = train_epochs(
        model,
        optimiser,
        rounds,
        lambda epoch: in_batches([(i + epoch) % count for i in range(count)], size),
        gradients,
        progress=lambda *told: None if said is None else said.append(told),
        checkpoint=checkpoint,
        describe=lambda terms: f"{terms.get('images', 0):.1f}",
        remedy="Go slower",
    )
    return last, seen


def test_every_step_is_told_and_the_last_epoch_is_the_mean_over_its_images():
    said = []
    last, seen = fit(Slope(), said=said)
    assert [number for number, _ in seen] == list(range(6))
    assert [indices for _, indices in seen[3:]] == [[1, 2], [3, 4], [0]]
    mean = (2 * 2 + 2 * 2 + 1 * 1) / 5  # batches of 2, 2 and 1 of five images
    assert last["images"] == pytest.approx(mean)
    # The terms of the last whole epoch are shown, so nothing in the first.
    assert said[:3] == [("train", done, 6, "0.0") for done in range(3)]
    assert said[3:] == [("train", done, 6, f"{mean:.1f}") for done in range(3, 7)]


@pytest.mark.parametrize("stop_at", range(6))
def test_a_stop_at_any_step_costs_that_step_alone(stop_at, tmp_path, monkeypatch):
    monkeypatch.setattr(training_module, "SAVE_EVERY_S", -1.0)
    whole = Slope()
    expected, _ = fit(whole)
    model = Slope()
    with pytest.raises(KeyboardInterrupt):
        fit(model, checkpoint=Checkpoint(tmp_path, "mark"), stop_at=stop_at)
    again = Slope()
    last, seen = fit(again, checkpoint=Checkpoint(tmp_path, "mark"))
    assert [number for number, _ in seen] == list(range(stop_at, 6))
    assert torch.equal(again.weight, whole.weight)
    assert last == expected


def test_between_times_nothing_is_written(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit(Slope(), checkpoint=Checkpoint(tmp_path, "mark"), stop_at=5)
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_a_loss_that_is_no_number_is_told_before_its_step():
    model = Slope()
    with pytest.raises(TrainingError, match=r"loss became nan in epoch 2.*Go slower, or look"):
        fit(model, loss=lambda m, number: m.weight * (math.nan if number == 4 else 1.0))
    assert model.weight.isfinite()


def test_an_infinite_parameter_is_never_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(training_module, "SAVE_EVERY_S", -1.0)
    model = Slope()

    def finite_but_not_for_long(m, number):
        value = m.weight * 1.0
        m.weight.data.fill_(math.inf)
        return value

    with pytest.raises(TrainingError, match="A parameter became infinite in epoch 1"):
        fit(model, loss=finite_but_not_for_long, checkpoint=Checkpoint(tmp_path, "mark"))
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_nothing_to_train_on_is_no_endless_loop():
    assert fit(Slope(), count=0) == ({}, [])
