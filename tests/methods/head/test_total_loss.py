"""Eq. 13: the loss of a batch, what takes part in it and what does not."""

from collections.abc import Callable

import numpy as np
import pytest
import slow_model
import torch
from heads import labelled
from torch import Tensor

from recap.methods.images import LabelledImages
from recap.methods.recap.head import ReCAP
from recap.methods.recap.losses import LossTerms, Objective
from recap.methods.recap.view import Branch

MakeModel = Callable[..., ReCAP]
LOSS = {"training": {"separation_margin": -0.5, "separation_weight": 0.7}}


Batch = tuple[Tensor, LabelledImages]


def make_batch(model: ReCAP, pixels: Tensor) -> Batch:
    generator = torch.Generator().manual_seed(3)
    masks = torch.rand(3, 70, 70, generator=generator) > 0.7
    masks[0] = False
    abnormal, has_mask = torch.tensor([False, True, True]), torch.tensor([True, True, False])
    return model.encode(pixels), labelled(abnormal, masks, has_mask)


def pick(batch: Batch, indices: list[int]) -> Batch:
    return batch[0][indices], batch[1].some(indices)


def objective_of(model: ReCAP) -> Objective:
    return Objective(model, [b for b in model.branches if isinstance(b, Branch)])


def stacked(terms: LossTerms) -> Tensor:
    return torch.stack([terms.total, terms.segmentation, terms.detection, terms.separation])


def gradients(model: ReCAP, loss: Tensor) -> dict[str, Tensor]:
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        n: torch.zeros_like(p) if g is None else g
        for (n, p), g in zip(named.items(), found, strict=True)
    }


@pytest.mark.parametrize("preset", ["fast", "paper"])
@torch.no_grad()
def test_terms_against_loops(make_model: MakeModel, pixels: Tensor, preset: str) -> None:
    model = make_model(preset, "domain_both", double=True, model={"logit_scale": 5.0}, **LOSS)
    batch = make_batch(model, pixels.double())
    output = model(pixels.double())
    terms = objective_of(model)(*batch)
    maps, masks = output.map.numpy(), batch[1].masks.numpy()
    seg = sum(
        slow_model.focal(maps[i], masks[i]) + slow_model.dice(maps[i], masks[i]) for i in (0, 1)
    )
    truths = zip(output.score.tolist(), batch[1].abnormal.tolist(), strict=True)
    det = sum(slow_model.detection(score, abnormal) for score, abnormal in truths)
    sep = 0.7 * slow_model.separation(
        torch.stack([model.maps.base(), model.scores.base()], dim=1).numpy(), -0.5
    )
    expected = [seg / 3 + det / 3 + sep, seg / 3, det / 3, sep]
    assert sep > 0
    np.testing.assert_allclose(stacked(terms).numpy(), expected, rtol=1e-5)
    assert LossTerms.NAMES == ("loss", "segmentation", "detection", "separation")


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_a_batch_is_the_mean_of_batches_of_one(
    make_model: MakeModel, pixels: Tensor, preset: str
) -> None:
    model = make_model(preset, double=True, model={"logit_scale": 5.0}, **LOSS)
    batch = make_batch(model, pixels.double())
    objective = objective_of(model)
    whole = objective(*batch)
    singles = [objective(*pick(batch, [i])) for i in range(3)]
    mean = torch.stack([stacked(s) for s in singles]).mean(dim=0)
    # The detection term is in float32.
    torch.testing.assert_close(stacked(whole), mean, rtol=1e-6, atol=1e-6)
    alone = [gradients(model, s.total) for s in singles]
    for name, gradient in gradients(model, whole.total).items():
        expected = torch.stack([g[name] for g in alone]).mean(dim=0)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-7)


def test_images_without_masks_add_no_segmentation(make_model: MakeModel, pixels: Tensor) -> None:
    model = make_model(model={"logit_scale": 5.0})
    batch = make_batch(model, pixels)
    objective = objective_of(model)
    assert objective(*pick(batch, [2])).segmentation.item() == 0
    one, two = (objective(*pick(batch, chosen)).segmentation.item() for chosen in ([1], [1, 2]))
    assert two == pytest.approx(one / 2, rel=1e-6)  # every image counts in the mean
    before = stacked(objective(*batch))
    batch[1].masks[2] = ~batch[1].masks[2]
    assert torch.equal(before, stacked(objective(*batch)))


def test_without_masks_the_segmentation_branch_learns_by_separation_alone(
    make_model: MakeModel, pixels: Tensor
) -> None:
    model = make_model(training={"separation_weight": 0.0}, model={"logit_scale": 5.0})
    batch = pick(make_batch(model, pixels), [2])
    found = gradients(model, objective_of(model)(*batch).total)
    for name, gradient in found.items():
        of_seg = name.startswith("branches.0.")
        assert bool((gradient == 0).all()) == of_seg, name
