"""MediCLIP against a slow reading of its equations, and what every method must hold to."""

import numpy as np
import pytest
import torch
import transformers
from holds import check_batches, check_saved, check_seeds_and_interruption
from slow_text import dice, focal

from recap.encoders.registry import ENCODERS
from recap.encoders.vit import Encoder
from recap.methods import mediclip
from recap.methods._prompts import LearnedPrompts
from recap.methods.mediclip import ABNORMAL, NORMAL, MediCLIP
from recap.methods.registry import resolve_settings
from recap.scoring.detector import head_tensors
from recap.scoring.fit import fit_sources, fit_support

QUICK = {"epochs": 2, "variants": 3}
FRESH = {"variants": None}


@pytest.fixture
def settings(peer_settings):
    def make(preset="equal", **options):
        return peer_settings("mediclip", preset, options={**QUICK, **options})

    return make


def slow_map(model, taps, text, size=70):
    """Softmax of both classes' mean cosines: (L, R, W), (2, C) -> (S, S)."""
    layers, patches, _ = taps.shape
    logits = np.zeros((patches, 2))
    for layer in range(layers):
        weight = model.projections[layer].weight.detach().double().numpy()
        bias = model.projections[layer].bias.detach().double().numpy()
        for r in range(patches):
            o = weight @ taps[layer, r] + bias
            for cls in range(2):
                logits[r, cls] += o @ text[cls] / np.linalg.norm(o) / layers
    grid = torch.from_numpy(logits.reshape(5, 5, 2)).permute(2, 0, 1)[None]
    large = torch.nn.functional.interpolate(grid, size, mode="bilinear", align_corners=True)
    return large[0].softmax(0)[1].numpy()


def test_score_and_map_follow_the_equations(settings, make_support, queries):
    model = fit_support(make_support(), settings()).model
    pixels = torch.from_numpy(np.stack([[q] * 3 for q in queries])).float()
    with torch.inference_mode():
        output, taps = model(pixels), model.encoder.taps(pixels).double().numpy()
    text = model.text.double().numpy()
    for i in range(len(queries)):
        expected = slow_map(model, taps[i, 1:], text)  # blocks 4, 6 and 8 of 8
        np.testing.assert_allclose(output.map[i].numpy(), expected, atol=2e-6)
        assert float(output.score[i]) == float(output.map[i].max())


def test_the_loss_of_the_first_epoch(settings, make_support, monkeypatch):
    """One batch of all variants: what is reported is their mean loss before the first step."""
    banks, original = [], mediclip.variant_bank

    def kept(*arguments):
        banks.append(original(*arguments))
        return banks[-1]

    monkeypatch.setattr(mediclip, "variant_bank", kept)
    chosen = settings(epochs=1, variants=3, batch_size=6, learning_rate=1e-12)
    detector = fit_support(make_support(2, 0), chosen)
    model, bank = detector.model, banks[0]
    with torch.inference_mode():
        taps = model.encode(bank.stack(range(6))).double().numpy()
    text, masks = model.text.double().numpy(), bank.masks.numpy()
    assert 0 < masks.any((1, 2)).sum() < 6  # some are changed, some are not
    maps = [slow_map(model, own, text) for own in taps]
    losses = [focal(a, m) + dice(a, m) for a, m in zip(maps, masks, strict=True)]
    assert detector.card.losses["loss"] == pytest.approx(np.mean(losses), rel=1e-4)


def test_the_size_at_the_published_encoder():
    """Three layers of 1024 × 768 with bias; prompts of 21 phrases × 8 × 768 beside them."""
    entry = ENCODERS["clip-vit-l14-336"]
    with torch.device("meta"):
        vision = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**entry.config))
        encoder = Encoder(vision, name="", checksum="", input_px=224, layers=(12, 18, 24))
        assert MediCLIP(encoder).num_trainable_parameters == 3 * (1024 * 768 + 768) == 2_361_600
    assert (len(NORMAL), len(ABNORMAL)) == (10, 11)


def test_the_layers_are_the_later_half():
    with torch.device("meta"):
        config = transformers.CLIPVisionConfig(hidden_size=32, num_attention_heads=2)
        encoder = Encoder(
            transformers.CLIPVisionModel(config), name="", checksum="", input_px=64, layers=(3, 6)
        )
        assert len(MediCLIP(encoder).projections) == 2  # whoever taps fewer gets fewer


@pytest.mark.parametrize("options", [{}, FRESH], ids=["fixed", "fresh"])
def test_fitting_learns(settings, make_support, options):
    losses = [
        fit_support(make_support(), settings(epochs=e, **options)).card.losses["loss"]
        for e in (1, 12)
    ]
    assert losses[1] < losses[0]


@pytest.mark.parametrize("options", [{}, FRESH], ids=["fixed", "fresh"])
def test_abnormal_images_are_not_looked_at(settings, make_support, options):
    heads = [
        head_tensors(fit_support(support, settings(**options)).model)
        for support in (make_support(3, 2), make_support(3, 0), make_support(3, 2, masks=False))
    ]
    for other in heads[1:]:
        assert all(torch.equal(heads[0][name], other[name]) for name in heads[0])


def test_fixed_variants_are_encoded_once_and_fresh_ones_every_time(
    settings, make_support, monkeypatch
):
    seen = []
    original = Encoder.compute

    def counted(self, pixels, layers):
        seen.extend(pixel.sum().item() for pixel in pixels)
        return original(self, pixels, layers)

    monkeypatch.setattr(Encoder, "compute", counted)
    monkeypatch.setattr("recap.scoring.fit.scale_of_images", lambda model, images: (0.0, 1.0))
    fit_support(make_support(2, 0), settings(epochs=4))
    assert len(seen) == 2 * 3 + 1  # and one to learn the shape of the tokens
    seen.clear()
    fit_support(make_support(2, 0), settings(epochs=8, **FRESH))
    assert len(seen) == 2 * 8
    assert len(set(seen)) > 8  # a quarter of them stay as they are


def test_one_normal_image_is_enough(settings, make_support, queries):
    detector = fit_support(make_support(1, 0), settings())
    assert detector.card.mode == "normal-only"
    assert 0 < detector.score(queries[0]).score < 1


def test_saved_and_loaded_scores_are_the_same(settings, make_support, queries, tmp_path):
    detector = fit_support(make_support(), settings())
    check_saved(detector, queries, tmp_path / "bundle")
    assert set(head_tensors(detector.model)) == {
        "text",
        *(f"projections.{i}.{part}" for i in range(3) for part in ("weight", "bias")),
    }


def test_a_score_is_the_image_s_own(settings, make_support, queries):
    detector = fit_support(make_support(), settings())
    check_batches(detector, queries, abs=1e-6)


@pytest.mark.parametrize("options", [{}, FRESH], ids=["fixed", "fresh"])
def test_seeds_and_interruption(settings, make_support, tmp_path, options):
    check_seeds_and_interruption(make_support(), settings(**options), tmp_path)


def test_zero_shot_is_an_extension_with_one_variant_each(settings, phantoms, queries, monkeypatch):
    asked = []
    original = mediclip.variant_bank

    def record(images, copies, seed):
        asked.append((copies, len(images.domains)))
        return original(images, copies, seed)

    monkeypatch.setattr(mediclip, "variant_bank", record)
    detector = fit_sources(phantoms, settings())
    assert asked == [(1, 3)]
    assert 0 < detector.score(queries[0]).score < 1


def test_prompts_stand_behind_their_context(settings, make_support, monkeypatch):
    made = []
    original = LearnedPrompts.__init__

    def record(self, tower, phrases, places, causal):
        made.append((phrases, places, causal))
        original(self, tower, phrases, places, causal)

    monkeypatch.setattr(LearnedPrompts, "__init__", record)
    fit_support(make_support(), settings(epochs=1))
    assert made == [((NORMAL, ABNORMAL), ("end",), True)]


def test_the_official_preset():
    settings = resolve_settings("official", method="mediclip")
    assert (settings.encoder.input_px, settings.encoder.layers) == (224, (12, 18, 24))
    assert settings.encoder.normalise == "own"
    options = settings.options
    assert (options.epochs, options.batch_size, options.variants) == (200, 8, None)
