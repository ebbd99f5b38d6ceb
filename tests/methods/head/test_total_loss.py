"""Eq. 13: the loss of a batch, what takes part in it and what does not."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import slow_model
import torch
from recap.methods.recap.tokens import DET, SEG
from torch import Tensor

from recap.methods.recap.head import ReCAP
from recap.methods.recap.losses import Batch, LossTerms, Objective, distance_to_others

MakeModel = Callable[..., ReCAP]
LOSS = {"training": {"separation_margin": -0.5, "separation_weight": 0.7}}


def make_batch(model: ReCAP, pixels: Tensor) -> Batch:
    generator = torch.Generator().manual_seed(3)
    masks = torch.rand(3, 70, 70, generator=generator) > 0.7
    masks[0] = False
    return Batch(
        prefix=model.prefix(pixels),
        abnormal=torch.tensor([False, True, True]),
        masks=masks,
        has_mask=torch.tensor([True, True, False]),
        origin=torch.tensor([0, 2, 3]),
    )


def pick(batch: Batch, indices: list[int]) -> Batch:
    fields = dataclasses.fields(Batch)
    return Batch(**{field.name: getattr(batch, field.name)[indices] for field in fields})


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
    model = make_model(preset, double=True, model={"logit_scale": 5.0}, **LOSS)
    batch = make_batch(model, pixels.double())
    output = model(pixels.double())
    terms = Objective(model)(batch)
    maps, masks = output.map.numpy(), batch.masks.numpy()
    seg = sum(
        slow_model.focal(maps[i], masks[i]) + slow_model.dice(maps[i], masks[i]) for i in (0, 1)
    )
    truths = zip(output.score.tolist(), batch.abnormal.tolist(), strict=True)
    det = sum(slow_model.detection(score, abnormal) for score, abnormal in truths)
    sep = 0.7 * slow_model.separation(model.base_prototypes().numpy(), -0.5)
    expected = [seg / 3 + det / 3 + sep, seg / 3, det / 3, sep]
    assert sep > 0
    np.testing.assert_allclose(terms.stacked().numpy(), expected, rtol=1e-5)
    assert LossTerms.NAMES == ("loss", "segmentation", "detection", "separation")


@pytest.mark.parametrize("preset", ["fast", "paper"])
@pytest.mark.parametrize("with_memory", [False, True])
def test_a_batch_is_the_mean_of_batches_of_one(
    make_model: MakeModel, pixels: Tensor, preset: str, with_memory: bool
) -> None:
    model = make_model(preset, double=True, model={"logit_scale": 5.0}, **LOSS)
    batch = make_batch(model, pixels.double())
    normals = model.prefix(pixels.flip(-1).double()[:2]) if with_memory else None
    objective = Objective(model, normals=normals)
    whole = objective(batch)
    singles = [objective(pick(batch, [i])) for i in range(3)]
    mean = torch.stack([s.stacked() for s in singles]).mean(dim=0)
    # The detection term is in float32.
    torch.testing.assert_close(whole.stacked(), mean, rtol=1e-6, atol=1e-6)
    alone = [gradients(model, s.total) for s in singles]
    for name, gradient in gradients(model, whole.total).items():
        expected = torch.stack([g[name] for g in alone]).mean(dim=0)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-7)


def test_images_without_masks_add_no_segmentation(make_model: MakeModel, pixels: Tensor) -> None:
    model = make_model(model={"logit_scale": 5.0})
    batch = make_batch(model, pixels)
    objective = Objective(model)
    assert objective(pick(batch, [2])).segmentation.item() == 0
    one, two = (objective(pick(batch, chosen)).segmentation.item() for chosen in ([1], [1, 2]))
    assert two == pytest.approx(one / 2, rel=1e-6)  # every image counts in the mean
    other = dataclasses.replace(batch, masks=batch.masks.clone())
    other.masks[2] = ~other.masks[2]
    assert torch.equal(objective(batch).stacked(), objective(other).stacked())


def test_without_masks_the_segmentation_branch_learns_by_separation_alone(
    make_model: MakeModel, pixels: Tensor
) -> None:
    model = make_model(training={"separation_weight": 0.0}, model={"logit_scale": 5.0})
    batch = pick(make_batch(model, pixels), [2])
    found = gradients(model, Objective(model)(batch).total)
    for name, gradient in found.items():
        number = int(name.split(".")[1]) if name.split(".")[1:] else None
        of_seg = name == "theta_seg" or (number is not None and number % 2 == SEG)
        assert bool((gradient == 0).all()) == of_seg, name


def slow_distance_to_others(tokens: Tensor, remembered: Tensor, origin: Tensor) -> Tensor:
    result = []
    for image, own in zip(tokens.tolist(), origin.tolist(), strict=True):
        others = [p for k, rows in enumerate(remembered.tolist()) if k != own for p in rows]
        result.append([slow_model.nearest(patch, others) for patch in image])
    return torch.tensor(result, dtype=torch.float64)


def test_distance_to_others_against_loops() -> None:
    tokens = torch.randn(4, 3, 5, dtype=torch.float64)
    remembered = torch.cat([tokens[:2], torch.randn(1, 3, 5, dtype=torch.float64)])
    origin = torch.tensor([0, 1, 2, 7])  # the last one is abnormal: nothing is left out
    seen = distance_to_others(tokens, remembered, origin)
    torch.testing.assert_close(seen, slow_distance_to_others(tokens, remembered, origin))
    assert (seen[:2] > 0.01).all()  # an image is not at distance zero from itself


@torch.no_grad()
def test_training_with_memory_fuses_the_others(make_model: MakeModel, pixels: Tensor) -> None:
    model = make_model(double=True, model={"logit_scale": 5.0}, memory={"weight": 0.3})
    batch = make_batch(model, pixels.double())
    normals = batch.prefix[:2]
    tokens, remembered = model.adapt(batch.prefix), model.adapt(normals)
    weights, score = slow_model.softmax(model.theta_det.tolist()), torch.zeros(3).double()
    for layer, weight in enumerate(weights):
        distance = slow_distance_to_others(tokens[layer][DET], remembered[layer][DET], batch.origin)
        for image, patches in enumerate(distance.tolist()):
            halves = [slow_model.half_clipped(d) for d in patches]
            score[image] += weight * slow_model.top_mean(halves, 0.10)
    fused = 0.7 * model(pixels.double()).score + 0.3 * score
    truths = zip(fused.tolist(), batch.abnormal.tolist(), strict=True)
    expected = sum(slow_model.detection(s, abnormal) for s, abnormal in truths) / 3
    terms = Objective(model, normals=normals)(batch)
    assert terms.detection.item() == pytest.approx(expected, rel=1e-5)


def test_the_remembered_side_takes_no_gradient(make_model: MakeModel, pixels: Tensor) -> None:
    model = make_model(model={"logit_scale": 5.0}, memory={"weight": 1.0})
    batch = make_batch(model, pixels)
    normals = batch.prefix[:2].clone().requires_grad_()
    terms = Objective(model, normals=normals)(batch)
    assert torch.autograd.grad(terms.total, normals, allow_unused=True) == (None,)
