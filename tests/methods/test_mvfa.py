"""MVFA against loops written from its equations, and what every method must hold to."""

import copy

import numpy as np
import pytest
import torch
import transformers
from holds import check_batches, check_saved, check_seeds_and_interruption, pixels_of
from slow_text import cross_entropy, dice, distances, focal, layer_map, leaky, stretched, unit

from recap.encoders.load import load_encoder
from recap.encoders.registry import ENCODERS
from recap.encoders.text import load_text_tower
from recap.encoders.vit import Encoder
from recap.methods import _prompts as prompts
from recap.methods import mvfa
from recap.methods.registry import resolve_settings
from recap.scoring.fit import fit_sources, fit_support

FEW = {"epochs": 2, "batch_size": 4}


@pytest.fixture(scope="module")
def settings(peer_settings):
    def make(preset="equal", **options):
        return peer_settings("mvfa", preset, options={**FEW, **options})

    return make


@pytest.fixture(scope="module")
def fitted(settings, make_support):
    def make(support=None, preset="equal", **options):
        chosen = settings(preset, **options)
        return fit_support(support or make_support(1, 1), chosen, domain="Chest")

    return make


@pytest.fixture(scope="module")
def few_shot(fitted, make_support):
    """On two images of each class; score with it, change nothing."""
    return fitted(make_support())


def arrays(module):
    return {name: value.detach().double().numpy() for name, value in module.state_dict().items()}


def slow_tokens(model, pixels):
    """Of every layer and branch, all tokens of one image."""
    encoder, weights = model.encoder, arrays(model)
    found, done = [], 0
    hidden = encoder.embed(pixels)
    for layer, block in enumerate(encoder.layers):
        hidden, done = encoder.run(hidden, done, block), block
        x = hidden[0].double().numpy()
        branches, change = [], 0
        for adapter in (2 * layer, 2 * layer + 1):
            branches.append(leaky(x @ weights[f"adapters.{adapter}.down.weight"].T))
            change = change + 0.1 * leaky(branches[-1] @ weights[f"adapters.{adapter}.up.weight"].T)
        found.append(branches)
        hidden = torch.from_numpy(0.8 * x + change).to(hidden.dtype)[None]
    return found


@torch.no_grad()
def slow_output(model, pixels, drawn_by=0):
    """Detection's score, and the map that segmentation (0) or detection (1) draws."""
    size, text = model.encoder.input_px, model.text.double().numpy()
    tokens, layers = slow_tokens(model, pixels), len(model.encoder.layers)
    drawn = sum(layer_map(both[drawn_by][1:], text, size) for both in tokens) / layers
    det = 0.0
    for _, rows in tokens:
        logits = 100 * unit(rows[1:]) @ text.T
        det += np.mean(1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))) / layers
    if model.memory is None:
        return det, drawn
    bank = model.memory.double().numpy()
    far = [
        sum(stretched(distances(t[b][1:], bank[i, b]), size) for i, t in enumerate(tokens))
        / (2 * layers)
        for b in (0, 1)
    ]
    return (det + far[1].mean()) / 2, (drawn + far[drawn_by]) / 2


@pytest.mark.parametrize("preset", ["equal", "official"])
def test_few_shot_scores_and_maps(fitted, queries, preset):
    detector = fitted(preset=preset)
    model = detector.model
    pixels = pixels_of(detector, queries[1])
    _, expected = slow_output(model, pixels)
    with torch.no_grad():
        output = model(pixels)
    np.testing.assert_allclose(output.map[0], expected, atol=2e-4)
    assert float(output.score) == pytest.approx(expected.max(), abs=2e-4)
    per_image = 25 + (preset == "official")
    assert model.memory.shape == (4, 2, 11 * per_image, 24)


def test_zero_shot_scores_and_maps(settings, phantoms, queries):
    detector = fit_sources(phantoms, settings(domain="Retina_RESC"))
    model = detector.model
    pixels = pixels_of(detector, queries[0])
    score, expected = slow_output(model, pixels)
    with torch.no_grad():
        output = model(pixels)
    np.testing.assert_allclose(output.map[0], expected, atol=2e-4)
    assert float(output.score) == pytest.approx(score, abs=2e-4)
    assert model.memory is None


@pytest.mark.parametrize("memory_weight", [0, 0.5])
def test_without_masks_the_map_is_that_of_detection(fitted, make_support, queries, memory_weight):
    detector = fitted(make_support(1, 1, masks=False), memory_weight=memory_weight)
    model = detector.model
    assert (model.memory is None) == (memory_weight == 0)
    pixels = pixels_of(detector, queries[1])
    with torch.no_grad():
        output = model(pixels)
    score, expected = slow_output(model, pixels, drawn_by=1)
    np.testing.assert_allclose(output.map[0], expected, atol=2e-4)
    assert float(output.score) == pytest.approx(score, abs=2e-4)


@pytest.fixture
def model(settings):
    torch.manual_seed(5)
    return mvfa.build(load_encoder(settings().encoder), mvfa.Options())


def batch():
    generator = torch.Generator().manual_seed(1)
    pixels = torch.rand(3, 3, 70, 70, generator=generator)
    masks = torch.rand(3, 70, 70, generator=generator) > 0.7
    anchors = torch.randn(3, 2, 24, generator=generator)
    abnormal, has_mask = torch.tensor([True, False, True]), torch.tensor([True, False, True])
    anchors = torch.nn.functional.normalize(anchors, dim=-1)
    return pixels, anchors, (abnormal, masks, has_mask)


def test_the_loss(model):
    pixels, anchors, labels = batch()
    expected = 0.0
    with torch.no_grad():
        found = float(model.loss(model.encode(pixels), anchors, labels))
        for i, text in enumerate(anchors.double().numpy()):
            abnormal, mask, has_mask = (label[i].numpy() for label in labels)
            for seg, det in slow_tokens(model, pixels[i : i + 1]):
                margin = 100 * unit(det[1:]) @ (text[1] - text[0])
                expected += cross_entropy(np.mean(1 / (1 + np.exp(-margin))), abnormal)
                if has_mask:
                    prob = layer_map(seg[1:], text, 70)
                    expected += focal(prob, mask) + dice(prob, mask)
    assert found == pytest.approx(expected / 3, rel=1e-4)


def test_images_without_masks_teach_detection_alone(model):
    pixels, anchors, (abnormal, masks, has_mask) = batch()
    model.loss(model.encode(pixels), anchors, (abnormal, masks, has_mask & False)).backward()
    for index, adapter in enumerate(model.adapters):
        assert (adapter.down.weight.grad is None) == (index % 2 == 0)
    # What segmentation writes back is part of what later layers see: as published, the gradient of
    # detection passes through it.
    found = [adapter.up.weight.grad for adapter in model.adapters[1::2]]
    model.zero_grad()
    tokens = model.adapt(model.encode(pixels))
    patches = mvfa.probability(model.margins(tokens, anchors, 1)).mean(dim=2)
    (mvfa.detection_loss(patches, abnormal).sum() / 3).backward()
    for one, adapter in zip(found, model.adapters[1::2], strict=True):
        torch.testing.assert_close(one, adapter.up.weight.grad)


def test_the_published_number_of_parameters():
    entry = ENCODERS["clip-vit-l14-336"]
    with torch.device("meta"):
        vision = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**entry.config))
        encoder = Encoder(vision, name=entry.name, checksum="", input_px=240)
        model = mvfa.build(encoder, mvfa.Options())
    assert model.num_trainable_parameters == 12_582_912


def test_saved_and_loaded_scores_are_the_same(few_shot, queries, tmp_path):
    check_saved(few_shot, queries, tmp_path / "bundle")


def test_scores_do_not_depend_on_the_batch(few_shot, queries):
    check_batches(few_shot, queries)


def test_seeds_and_interruption(settings, make_support, tmp_path):
    check_seeds_and_interruption(make_support(1, 1), settings(), tmp_path)


def test_the_domain_decides_the_sentences(few_shot, settings, phantoms):
    tower = load_text_tower(settings().encoder)
    expected = prompts.text_features(tower, "Chest X-ray film")
    assert torch.equal(few_shot.model.text, expected)
    for target, subject in (("Brain", "Brain"), ("", "medical image")):
        zero_shot = fit_sources(phantoms[1:], settings(epochs=1), domain=target)
        assert torch.equal(zero_shot.model.text, prompts.text_features(tower, subject))


def test_the_memory_may_hold_the_images_alone(fitted, make_support):
    model = fitted(make_support(2, 1), remember_copies=False, epochs=1).model
    assert model.memory.shape == (4, 2, 2 * 25, 24)


def test_map_scale_leaves_the_image_itself_out(few_shot, make_support):
    """By hand: each normal image with the memory of the other one."""
    model, maps = copy.deepcopy(few_shot.model), []
    halves = few_shot.model.memory.chunk(2, dim=2)  # 11 copies of either image
    for item, others in zip(make_support()[:2], reversed(halves), strict=True):
        model.memory = others
        with torch.no_grad():
            maps.append(model(few_shot.preprocess(item.image)[None]).map.numpy())
    low, high = np.quantile(maps, (0.9, 1.0))
    assert few_shot.map_scale == pytest.approx((low, high + max(high - low, 1e-3)), abs=1e-6)


def test_published_settings():
    settings = resolve_settings("official", method="mvfa")
    assert (settings.encoder.name, settings.encoder.input_px) == ("clip-vit-l14-336", 240)
    assert settings.encoder.normalise == "unit"
    options = settings.options.model_dump()
    assert (options["batch_size"], options["epochs"], options["clip_norm"]) == (1, 50, None)
