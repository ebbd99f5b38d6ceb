"""MadCLIP against a slow reading of its equations, and what every method must hold to."""

import numpy as np
import pytest
import torch
import transformers
from holds import check_batches, check_saved, check_seeds_and_interruption
from slow_text import dice, focal

from recap.encoders.registry import ENCODERS
from recap.encoders.vit import Encoder
from recap.methods._prompts import LearnedPrompts
from recap.methods.images import LabelledImages
from recap.methods.madclip import (
    ABNORMAL,
    GREY,
    NORMAL,
    PLACES,
    SIXTEEN,
    MadCLIP,
    Options,
    batch_loss,
    detection_loss,
    jitter,
    with_sixteen_copies,
    zoom,
)
from recap.methods.registry import resolve_settings
from recap.scoring.detector import head_tensors
from recap.scoring.fit import fit_sources, fit_support

QUICK = {"epochs": 2, "copies": 1}


@pytest.fixture
def settings(peer_settings):
    def make(preset="equal", **options):
        return peer_settings("madclip", preset, options={**QUICK, **options})

    return make


def leaky(x):
    return np.where(x > 0, x, 0.01 * x)


def slow_margins(model, taps, text):
    """z_n and z_a, token by token: (L, R, W), (2, C) -> {det, seg}: (L, R, 2)."""
    out = {head: np.zeros((*taps.shape[:2], 2)) for head in ("det", "seg")}
    for layer, tokens in enumerate(taps):
        for cls, adapters in enumerate((model.normal, model.abnormal)):
            adapter = adapters[layer]
            shared = adapter.shared.weight.detach().double().numpy()
            for r, token in enumerate(tokens):
                hidden = leaky(shared @ token)
                hidden = (hidden - hidden.mean()) / np.sqrt(hidden.var() + 1e-5)
                for head in ("det", "seg"):
                    weight = getattr(adapter, head).weight.detach().double().numpy()
                    o = leaky(weight @ hidden)
                    o /= np.linalg.norm(o)
                    own, other = text[cls], text[1 - cls]
                    out[head][layer, r, cls] = o @ own - o @ other
    return out


def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def slow_upsampled(grid_values, size):
    """Bilinear with the outer values on the border, pixel by pixel."""
    grid = len(grid_values)
    out = np.zeros((size, size))
    for row in range(size):
        for column in range(size):
            y, x = row * (grid - 1) / (size - 1), column * (grid - 1) / (size - 1)
            top, left = min(int(y), grid - 2), min(int(x), grid - 2)
            fy, fx = y - top, x - left
            square = grid_values[top : top + 2, left : left + 2]
            out[row, column] = np.array([1 - fy, fy]) @ square @ np.array([1 - fx, fx])
    return out


def slow_maps(logits, size):
    """Σ over layers of ½ (1 − p_n) + ½ p_a, after upsampling, divided by the layers."""
    total = np.zeros((size, size))
    for layer in logits:
        grid = layer.reshape(5, 5, 2)
        both = np.stack([slow_upsampled(grid[..., c], size) for c in (0, 1)], axis=-1)
        p = softmax(both)
        total += 0.5 * (1 - p[..., 0]) + 0.5 * p[..., 1]
    return total / len(logits)


@pytest.mark.parametrize("masks", [True, False])
def test_score_and_map_follow_the_equations(settings, make_support, queries, masks):
    model = fit_support(make_support(masks=masks), settings()).model
    pixels = torch.from_numpy(np.stack([[q] * 3 for q in queries])).float()
    with torch.inference_mode():
        output, taps = model(pixels), model.encode(pixels).double().numpy()
    text = model.text.double().numpy()
    for i in range(len(queries)):
        margins = slow_margins(model, taps[i], text)
        expected = slow_maps(margins["seg" if masks else "det"], 70)
        np.testing.assert_allclose(output.map[i].numpy(), expected, atol=2e-6)
        mean = softmax(margins["det"])[..., 1].mean()
        np.testing.assert_allclose(
            float(output.score[i]), expected.max() if masks else mean, atol=2e-6
        )


def test_the_published_size():
    entry = ENCODERS["clip-vit-l14-336"]
    with torch.device("meta"):
        vision = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**entry.config))
        encoder = Encoder(vision, name=entry.name, checksum="", input_px=240)
        assert MadCLIP(encoder).num_trainable_parameters == 20_971_520
    prompts = len(PLACES) * (len(NORMAL) + len(ABNORMAL)) * 8 * entry.text_config["hidden_size"]
    assert prompts == 258_048


@pytest.fixture
def prompts_made(monkeypatch):
    """The phrases and the shape of the context of all prompts that are made from now on."""
    made, original = [], LearnedPrompts.__init__

    def record(self, tower, phrases, places, causal):
        original(self, tower, phrases, places, causal)
        made.append((phrases[0][0], phrases[1][0], tuple(self.context.shape)))

    monkeypatch.setattr(LearnedPrompts, "__init__", record)
    return made


@pytest.mark.parametrize(
    ("domain", "name"),
    [("Retina_RESC", "retinal OCT"), ("my_own", "my own"), ("", "medical image")],
)
def test_prompts_name_the_domain(settings, make_support, prompts_made, domain, name):
    fit_support(make_support(), settings(epochs=1), domain=domain)
    assert prompts_made == [(name, f"abnormal {name}", (3, 14, 8, 16))]


def test_prompts_of_several_domains_name_none(settings, phantoms, prompts_made):
    fit_sources(phantoms, settings(epochs=1))
    assert prompts_made[0][0] == "medical image"


def test_the_loss_of_detection_by_hand():
    logits = torch.tensor([[[[0.5, -1.0], [2.0, 0.0]]], [[[0.5, -1.0], [2.0, 0.0]]]])
    losses = detection_loss(logits, torch.tensor([False, True]))

    def softplus(x):
        return np.log1p(np.exp(x))

    # Normal: z_n should be high and z_a low; −log σ(x) = softplus(−x). Abnormal: the reverse.
    normal = np.mean([softplus(-0.5) + softplus(-1.0), softplus(-2.0) + softplus(0.0)])
    abnormal = np.mean([softplus(0.5) + softplus(1.0), softplus(2.0) + softplus(0.0)])
    np.testing.assert_allclose(losses.flatten().numpy(), [normal, abnormal], rtol=1e-6)


def some_images(has_mask):
    count = len(has_mask)
    masks = torch.zeros(count, 70, 70, dtype=torch.bool)
    masks[:, 10:30, 10:30] = True
    index = torch.arange(count)
    abnormal = torch.ones(count, dtype=torch.bool)
    pixels = torch.rand(count, 3, 70, 70, generator=torch.Generator().manual_seed(0))
    return LabelledImages(
        pixels.__getitem__,
        abnormal,
        masks,
        torch.tensor(has_mask),
        index,
        index * 0,
        ("",),
        index * 0,
    )


def test_images_count_alike_in_every_batch(settings, make_support):
    """Also when only some have masks: the loss of a batch is the mean of its images'."""
    model = fit_support(make_support(), settings(epochs=1)).model
    images = some_images([True, False, True])
    with torch.no_grad():
        logits = model.logits(model.encode(images.stack(range(3))), model.text)
        whole = batch_loss(model, logits, images, [0, 1, 2])
        single = [batch_loss(model, logits[[i]], images, [i]) for i in range(3)]
    torch.testing.assert_close(whole, torch.stack(single).mean())
    without = batch_loss(model, logits, some_images([False] * 3), [0, 1, 2])
    torch.testing.assert_close(
        without, detection_loss(logits[:, :, 0], images.abnormal).sum(1).mean()
    )
    assert float(single[1]) < float(single[0])


def test_the_loss_of_segmentation(settings, make_support):
    """Focal and Dice of every layer's map of the seg head, summed over layers."""
    model = fit_support(make_support(), settings(epochs=1)).model
    marked, plain = some_images([True]), some_images([False])
    with torch.no_grad():
        taps = model.encode(marked.stack([0]))
        logits = model.logits(taps, model.text)
        seen = batch_loss(model, logits, marked, [0]) - batch_loss(model, logits, plain, [0])
    margins = slow_margins(model, taps[0].double().numpy(), model.text.double().numpy())["seg"]
    maps = [slow_maps(layer[None], 70) for layer in margins]
    mask = marked.masks[0].numpy()
    expected = sum(focal(layer, mask) + dice(layer, mask) for layer in maps)
    assert float(seen) == pytest.approx(expected, rel=1e-4)


def test_sixteen_copies(make_support):
    images = some_images([True, False])
    copies = with_sixteen_copies(images)
    assert len(copies) == 2 * SIXTEEN == 32
    assert copies.origin.tolist() == [0] * 16 + [1] * 16
    assert copies.has_mask.tolist() == [True] * 16 + [False] * 16
    eleven = images.with_copies()
    for i in range(11):
        assert torch.equal(copies.pixels(16 + i), eleven.pixels(11 + i))
        assert torch.equal(copies.masks[16 + i], eleven.masks[11 + i])
    for i, factor in enumerate((1.1, 1.15, 1.2, 1.3)):
        magnified, mask = zoom(images.stack([1]), images.masks[[1]], factor)
        assert torch.equal(copies.pixels(27 + i), magnified[0])
        assert torch.equal(copies.masks[27 + i], mask[0])
    assert torch.equal(copies.pixels(31), jitter(images.stack([0, 1]))[1])
    assert torch.equal(copies.masks[31], images.masks[1])


def test_a_zoom_magnifies_about_the_middle():
    ramp = ((torch.arange(70) + 0.5) / 70).expand(1, 3, 70, 70)
    mask = torch.zeros(1, 70, 70, dtype=torch.bool)
    mask[:, 25:45, 25:45] = True
    magnified, marked = zoom(ramp, mask, 1.3)
    for column in (0, 13, 34, 69):
        expected = 0.5 + ((column + 0.5) / 70 - 0.5) / 1.3
        assert float(magnified[0, 0, 35, column]) == pytest.approx(expected, abs=1e-5)
    assert int(marked[0, 35].sum()) == 26  # 20 px × 1.3


def test_a_change_of_colour_is_small_and_always_the_same():
    pixels = some_images([True] * 2).stack([0, 1])
    changed = jitter(pixels)
    assert torch.equal(changed, jitter(pixels))
    assert 0 < float((changed - pixels).abs().max()) < 0.5
    assert 0 <= float(changed.min()) <= float(changed.max()) <= 1
    # The same factors for every image, whoever else is there.
    assert torch.allclose(jitter(pixels / 4)[1:], jitter(pixels[1:] / 4))
    assert torch.allclose(jitter(pixels / 4), 2 * jitter(pixels / 8), atol=1e-6)
    # By less than a fifth, brightness before contrast: a flat image knows of brightness alone.
    flat, steps = torch.full((1, 3, 4, 4), 0.5), torch.tensor([0.4, 0.6]).repeat(1, 3, 4, 2)
    brightness = float(jitter(flat)[0, 0, 0, 0]) / 0.5
    low, high = jitter(steps)[0, 0, 0, :2].tolist()
    contrast = (high - low) / 0.2 / brightness
    drawn = 2 * torch.rand(2, generator=torch.Generator().manual_seed(111)) - 1
    assert [brightness, contrast] == pytest.approx((1 + 0.2 * drawn).tolist(), abs=1e-5)
    grey = torch.full((1, 3, 4, 4), 0.5)
    assert torch.allclose(jitter(grey), jitter(grey)[:, :1], atol=1e-6)  # grey stays grey
    assert sum(GREY) == pytest.approx(1)


@pytest.mark.parametrize("copies", [1, 11, 16])
def test_fitting_learns(settings, make_support, copies):
    losses = [
        fit_support(make_support(), settings(epochs=e, copies=copies)).card.losses["loss"]
        for e in (1, 6)
    ]
    assert losses[1] < losses[0]


def test_masks_for_some_images(settings, make_support, queries):
    support = make_support()[:-1] + make_support(masks=False)[-1:]
    model = fit_support(support, settings()).model
    assert bool(model.seg_trained)
    assert bool(model.score_is_maximum)


def test_saved_and_loaded_scores_are_the_same(settings, make_support, queries, tmp_path):
    detector = fit_support(make_support(), settings(), domain="Brain")
    check_saved(detector, queries, tmp_path / "bundle")
    names = set(head_tensors(detector.model))
    assert {"text", "seg_trained", "score_is_maximum"} <= names
    assert not any("context" in name for name in names)
    assert detector.card.settings.options == Options(**QUICK, domain="Brain")


def test_a_score_is_the_image_s_own(settings, make_support, queries):
    detector = fit_support(make_support(), settings())
    check_batches(detector, queries, abs=1e-6)


def test_seeds_and_interruption(settings, make_support, tmp_path):
    check_seeds_and_interruption(make_support(), settings(), tmp_path)


def test_zero_shot_is_an_extension_with_the_score_of_detection(settings, phantoms, queries):
    detector = fit_sources(phantoms, settings(copies=11))
    assert bool(detector.model.seg_trained)
    assert not bool(detector.model.score_is_maximum)
    assert 0 < detector.score(queries[0]).score < 1


def test_the_name_of_the_domain_matters(settings, make_support):
    texts = [
        fit_support(make_support(), settings(epochs=1), domain=name).model.text
        for name in ("Brain", "Liver")
    ]
    assert not torch.equal(*texts)


def test_the_official_preset():
    settings = resolve_settings("official", method="madclip")
    assert (settings.encoder.name, settings.encoder.input_px) == ("clip-vit-l14-336", 240)
    assert settings.encoder.normalise == "unit"
    options = settings.options
    assert (options.epochs, options.batch_size, options.copies) == (60, 16, 16)
    assert not options.causal


def test_the_official_text_without_a_causal_mask(settings, make_support):
    seen = [
        fit_support(make_support(), settings(epochs=1, causal=causal)).model.text
        for causal in (True, False)
    ]
    assert not torch.allclose(*seen, atol=1e-4)
