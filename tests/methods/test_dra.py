"""DRA against a slow reading of its equations, and as a detector among others."""

import numpy as np
import pytest
import torch
import transformers
from holds import are_same, check_batches, check_saved, check_seeds_and_interruption
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_resnet import PX, TINY, tiny_network

import recap
from recap.encoders.conversion import RESNET_CONFIG
from recap.errors import BundleError, InputError
from recap.methods import _dra_backbone as dra_backbone
from recap.methods import dra
from recap.methods._dra_backbone import Backbone
from recap.methods.dra import (
    DRA,
    NORMAL,
    PSEUDO,
    SEEN,
    Heads,
    Options,
    Sampler,
    cut_and_paste,
    deviation_loss,
    interpolation,
    rectangle,
    top_mean,
    total_loss,
)
from recap.methods.images import LabelledImages
from recap.methods.registry import resolve_settings
from recap.scoring.fit import fit_sources, fit_support


@pytest.fixture
def quick(resnet_folder):
    options = {"epochs": 2, "steps": 2, "batch_size": 4, "copies": False}
    encoder = {"name": str(resnet_folder), "input_px": PX}
    return resolve_settings(method="dra", encoder=encoder, options=options)


@pytest.fixture
def model():
    torch.manual_seed(2)
    encoder = Backbone(tiny_network(), name="", checksum="", input_px=PX)
    model = DRA(encoder, Options()).eval()
    model.reference_whole, model.reference_half = torch.randn(16, 3, 3), torch.randn(16, 2, 2)
    return model


def slow_heads(heads, features, reference):
    """Scores (4,) and patch scores (3, h, w) of one image, patch by patch."""
    pooled = features.reshape(16, -1).mean(axis=1)
    first, last = heads.holistic[0], heads.holistic[2]
    hidden = np.maximum(first.weight.numpy() @ pooled + first.bias.numpy(), 0)
    scores = [(last.weight.numpy() @ hidden + last.bias.numpy()).item()]
    patches = []
    for head, values in (
        (heads.seen, features),
        (heads.pseudo, features),
        (heads.composite, features - reference),
    ):
        weight, bias = head.weight.numpy().reshape(16), head.bias.numpy()
        grid = np.abs(np.einsum("c,chw->hw", weight, values) + bias)
        patches.append(grid)
        count = max(int(grid.size * 0.1), 1)
        scores.append(np.sort(grid.flatten())[-count:].mean())
    return np.array(scores), np.stack(patches)


def slow_map(values, step_px):
    """Bilinear between patches that stand at multiples of `step_px`."""
    cells = len(values)
    positions = [
        min(max((p + 0.5 - 0.5 * step_px / 32) / step_px, 0), cells - 1) for p in range(PX)
    ]
    seen = np.empty((PX, PX))
    for r, y in enumerate(positions):
        for c, x in enumerate(positions):
            top, left = min(int(y), cells - 2), min(int(x), cells - 2)
            v, u = y - top, x - left
            seen[r, c] = (
                values[top, left] * (1 - v) * (1 - u) + values[top, left + 1] * (1 - v) * u
                + values[top + 1, left] * v * (1 - u) + values[top + 1, left + 1] * v * u
            )  # fmt: skip
    return seen


@torch.no_grad()
def test_map_and_score_are_those_of_the_equations(model):
    pixels = torch.rand(1, 3, PX, PX)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    whole = (pixels - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    half = torch.nn.functional.interpolate(whole, (48, 48), mode="bilinear", antialias=True)
    scores, maps = [], []
    for scale, reference, step in (
        (whole, model.reference_whole, 32),
        (half, model.reference_half, 64),
    ):
        features = model.network(scale).last_hidden_state[0].numpy()
        of_heads, patches = slow_heads(model.heads, features, reference.numpy())
        scores.append(of_heads)
        maps.append(slow_map(patches.sum(axis=0), step))
    holistic, *others = np.mean(scores, axis=0)
    output = model(pixels)
    assert float(output.score) == pytest.approx(sum(others) - holistic, rel=1e-4)
    np.testing.assert_allclose(output.map[0].numpy(), np.mean(maps, axis=0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("patches", "count"), [((2, 2), 1), ((14, 14), 19), ((8, 8), 6)])
def test_a_tenth_of_the_patches_counts(patches, count):
    scores = torch.rand(2, 3, *patches)
    expected = scores.flatten(2).sort(dim=2).values[:, :, -count:].mean(dim=2)
    torch.testing.assert_close(top_mean(scores), expected)


@given(st.floats(-20, 20), st.booleans())
@settings(deadline=None)
def test_deviation_loss_of_one_image(score, deviating):
    draws = torch.tensor([0.0, 2.0, 1.0, 1.0], dtype=torch.float64)
    deviation = (score - 1) / np.std([0, 2, 1, 1], ddof=1)
    expected = max(0.0, 5 - deviation) if deviating else abs(deviation)
    scores = torch.tensor([score], dtype=torch.float64)
    loss = deviation_loss(scores, torch.tensor([deviating]), draws)
    assert loss.item() == pytest.approx(expected)


def test_the_loss_of_a_head_is_the_mean_over_its_images():
    scores, flags = torch.randn(3), torch.tensor([True, False, True])
    draws = torch.randn(50)
    single = [deviation_loss(scores[[i]], flags[[i]], draws) for i in range(3)]
    torch.testing.assert_close(deviation_loss(scores, flags, draws), torch.stack(single).mean())


def test_each_head_learns_from_the_images_that_concern_it():
    scores = torch.randn(6, 4, requires_grad=True)
    kinds = torch.tensor([NORMAL, NORMAL, SEEN, SEEN, PSEUDO, PSEUDO])
    torch.manual_seed(3)
    loss = total_loss(scores, kinds)
    torch.manual_seed(3)
    draws = torch.randn(5000)
    uses = [
        (range(6), (0, 1)),
        ((0, 1, 2, 3), (2, 3)),
        ((0, 1, 4, 5), (4, 5)),
        (range(6), (2, 3, 4, 5)),
    ]
    expected = 0.0
    for head, (used, deviating) in enumerate(uses):
        flags = torch.tensor([i in deviating for i in used])
        expected += deviation_loss(scores[list(used), head], flags, draws).item()
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert scores.grad[4:, 1].abs().max() == scores.grad[2:4, 2].abs().max() == 0


def test_patches_stand_where_the_network_sees_them():
    """The middle of what a patch depends on, found by its gradients."""
    network = tiny_network().double().eval()
    pixels = torch.rand(1, 3, 448, 448, dtype=torch.float64, requires_grad=True)
    network(pixels).last_hidden_state[0, :, 7, 7].sum().backward()
    rows = pixels.grad.abs().sum(dim=(0, 1, 3)).nonzero().flatten()
    assert 0 < rows[0] < rows[-1] < 447
    assert (rows[0] + rows[-1]).item() / 2 == pytest.approx(224, abs=2)
    assert interpolation(14, 448, 0)[224].nonzero().flatten().tolist() == [7]


def test_the_number_of_parameters():
    with torch.device("meta"):
        start = transformers.ResNetModel(transformers.ResNetConfig(**RESNET_CONFIG))
        model = DRA(Backbone(start, name="", checksum="", input_px=448), Options())
    assert sum(p.numel() for p in model.network.parameters()) == 11_176_512
    assert sum(p.numel() for p in model.heads.parameters()) == 512 * 256 + 256 + 257 + 3 * 513
    assert model.num_trainable_parameters == 11_176_512 + 133_124


def labelled(normal, abnormal):
    """Images of constant grey: normal ones 0.1, 0.2, …, abnormal ones from 0.6 on."""
    values = [0.1 * (i + 1) for i in range(normal)] + [0.6 + 0.1 * i for i in range(abnormal)]
    pixels = torch.tensor(values).view(-1, 1, 1, 1).expand(-1, 3, 20, 20)
    count = torch.arange(len(values))
    none = torch.zeros(len(values), 20, 20, dtype=torch.bool)
    flags = count >= normal
    return LabelledImages(
        pixels.__getitem__, flags, none, flags, count, torch.zeros_like(count), ("",), count * 0
    )


@pytest.mark.parametrize(("size", "parts"), [(4, (2, 1)), (16, (8, 4)), (48, (24, 12))])
def test_batches_are_half_normal(size, parts):
    pixels, kinds = Sampler(labelled(4, 2), 0).batch(size)
    assert [(kinds == kind).sum().item() for kind in (NORMAL, SEEN, PSEUDO)] == [*parts, parts[1]]
    assert pixels[kinds == SEEN].min() > 0.55
    assert pixels[kinds != SEEN].max() < 0.45
    flat = pixels.flatten(1)
    assert (flat[kinds != PSEUDO].std(dim=1) < 1e-6).all()


@given(st.integers(0, 10_000), st.integers(4, 40))
@settings(deadline=None)
def test_a_rectangle_of_the_donor_is_pasted(seed, size):
    torch.manual_seed(seed)
    image = cut_and_paste(torch.zeros(1, 3, size, size), torch.ones(1, 3, size, size))[0, 0]
    rows, columns = image.any(dim=1).sum(), image.any(dim=0).sum()
    assert image.sum() == rows * columns > 0
    assert image.sum() <= (0.15**0.5 * size + 1) ** 2 * 1.2


def test_rectangles_are_as_large_and_as_long_as_said():
    torch.manual_seed(0)
    sides = torch.tensor([rectangle(2000) for _ in range(3000)], dtype=torch.float64)
    height, width = sides.T
    share, aspect = height * width / 2000**2, height / width
    assert [float(share.min()), float(share.max())] == pytest.approx([0.02, 0.15], rel=0.02)
    assert [float(aspect.min()), float(aspect.max())] == pytest.approx([1 / 3, 3.0], rel=0.02)
    assert float((aspect < 1).double().mean()) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("count", "expected"), [(2, 2), (5, 3)])
def test_references_are_different_normal_images(count, expected):
    values = Sampler(labelled(3, 2), 0).references(count)[:, 0, 0, 0]
    assert len(values.unique()) == expected
    assert values.max() < 0.55


def test_training_images_are_turned_if_asked_to():
    images = labelled(1, 1)
    ramp = torch.linspace(0, 1, 20).expand(3, 20, 20)
    turned = LabelledImages(
        lambda i: ramp, images.abnormal, images.masks, images.has_mask, images.origin,
        images.domain, images.domains, images.copy,
    )  # fmt: skip
    still = Sampler(turned, 0).batch(4)[0][:2]
    assert torch.equal(still, ramp.expand(2, -1, -1, -1))
    assert not torch.isclose(Sampler(turned, 180).batch(4)[0][0], ramp, atol=0.01).all()


def test_they_are_turned_by_up_to_the_angle_either_way(monkeypatch):
    angles = []
    monkeypatch.setattr(
        "recap.methods.dra.rotate", lambda pixels, angle: angles.append(angle) or pixels
    )
    torch.manual_seed(0)
    Sampler(labelled(2, 2), 30).batch(400)
    assert [min(angles), max(angles)] == pytest.approx([-30, 30], abs=1)
    assert np.mean(angles) == pytest.approx(0, abs=3)


def test_statistics_of_batch_norms_never_change(quick, make_support):
    detector = fit_support(make_support(), quick)
    start = detector.model.encoder.start.state_dict()
    after = detector.model.network.state_dict()
    for name in start:
        if "running" in name:
            assert torch.equal(start[name], after[name])
    name = "embedder.embedder.convolution.weight"
    assert not torch.equal(start[name], after[name])


def test_saved_batched_and_single_scores_agree(quick, make_support, queries, tmp_path):
    detector = fit_support(make_support(), quick)
    check_saved(detector, queries, tmp_path / "bundle")
    check_batches(detector, queries, rel=1e-3, abs=1e-4)


def test_a_fit_is_decided_by_its_seed_and_goes_on_after_a_kill(quick, make_support, tmp_path):
    whole = check_seeds_and_interruption(make_support(), quick, tmp_path)
    finished = fit_support(make_support(), quick, work_dir=tmp_path)  # nothing is left to do
    assert are_same(whole, finished)


def test_training_tells_the_support_apart(resnet_folder, make_support):
    settings = resolve_settings(
        method="dra",
        encoder={"name": str(resnet_folder), "input_px": PX},
        options={"epochs": 6, "steps": 5, "batch_size": 8, "copies": False},
    )
    support = make_support()
    detector = fit_support(support, settings)
    scores = [detector.score(item.image).score for item in support]
    assert max(scores[:2]) < min(scores[2:])


@pytest.mark.parametrize(("zero_shot", "copies", "count"), [(0, 1, 44), (0, 0, 4), (1, 1, 12)])
def test_copies_are_for_support_images(
    zero_shot, copies, count, quick, make_support, phantoms, monkeypatch
):
    seen = []
    original = dra.Sampler

    def sampler(images, rotation_deg):
        seen.append(len(images))
        return original(images, rotation_deg)

    monkeypatch.setattr(dra, "Sampler", sampler)
    chosen = {"copies": bool(copies), "epochs": 1, "steps": 1}
    options = quick.options.model_copy(update=chosen)
    settings = quick.model_copy(update={"options": options})
    if zero_shot:
        fit_sources(phantoms, settings)
    else:
        fit_support(make_support(), settings)
    assert seen[0] == count
    assert seen[-1] == (12 if zero_shot else 4)  # references are images, not copies


def test_normal_images_alone_are_refused(quick, make_support):
    with pytest.raises(InputError, match="DRA needs abnormal images"):
        fit_support(make_support(abnormal=0), quick)


def test_random_weights_need_no_file_and_must_be_asked_for(make_support, tmp_path, monkeypatch):
    monkeypatch.setattr(dra_backbone, "RESNET_CONFIG", TINY)
    settings = resolve_settings(
        method="dra",
        encoder={"random_weights": True, "input_px": 64},
        options={"epochs": 1, "steps": 1, "batch_size": 4, "copies": False},
    )
    detector = fit_support(make_support(), settings)
    detector.save(tmp_path / "bundle")
    with pytest.raises(BundleError, match="random weights"):
        recap.load(tmp_path / "bundle")
    again = recap.load(tmp_path / "bundle", random_weights=True)
    image = make_support()[0].image
    assert again.score(image).score == detector.score(image).score


def test_heads_differ_from_each_other():
    torch.manual_seed(0)
    scores = Heads(16)(torch.randn(2, 16, 3, 3), torch.zeros(16, 3, 3))
    assert scores.shape == (2, 4)
    assert len(scores[0].unique()) == 4


def test_official_is_the_published_recipe():
    settings = resolve_settings("official", method="dra")
    assert (settings.encoder.name, settings.encoder.input_px) == ("microsoft/resnet-18", 448)
    assert (settings.options.epochs, settings.options.steps) == (30, 20)
    assert (settings.options.batch_size, settings.options.rotation_deg) == (48, 180)
