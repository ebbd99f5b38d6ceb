"""APRIL-GAN against loops written from its equations, and what every method must hold to."""

import numpy as np
import pytest
import torch
import transformers
from holds import check_batches, check_saved, check_seeds_and_interruption, pixels_of
from slow_text import dice, distances, focal, layer_map, soft_abnormal, stretched, unit

from recap.encoders.registry import ENCODERS
from recap.encoders.vit import Encoder
from recap.errors import InputError
from recap.methods import april_gan
from recap.methods.registry import resolve_settings
from recap.scoring.fit import fit_sources, fit_support

FEW = {"epochs": 2, "batch_size": 4}


@pytest.fixture(scope="module")
def settings(peer_settings):
    def make(preset="equal", **options):
        return peer_settings("april_gan", preset, options={**FEW, **options})

    return make


@pytest.fixture(scope="module")
def few_shot(settings, make_support):
    """On two images of each class; score with it, change nothing."""
    return fit_support(make_support(), settings(), domain="Liver")


@pytest.fixture(scope="module")
def zero_shot(settings, phantoms):
    """On three domains, one of them without masks."""
    return fit_sources(phantoms, settings(domain="Retina_RESC"))


@torch.no_grad()
def slow_parts(model, pixels, whole_model):
    """Of one image: CLIP's own probability, the mean map of the heads, that of the distances."""
    encoder, size = model.encoder, model.encoder.input_px
    text, layers = model.text.double().numpy(), len(encoder.layers)
    states = whole_model.vision_model(
        (pixels - encoder.mean) / encoder.std, output_hidden_states=True
    )
    image = whole_model.visual_projection(states.pooler_output)[0].double().numpy()
    score = soft_abnormal(100 * unit(image) @ text.T)
    heads, found = np.zeros((size, size)), np.zeros((size, size))
    for index, layer in enumerate(encoder.layers):
        tokens = states.hidden_states[layer][0, 1:].double().numpy()
        weight, bias = (getattr(model.heads[index], n).double().numpy() for n in ("weight", "bias"))
        heads += layer_map(tokens @ weight.T + bias, text, size) / layers
        if model.memory is not None:
            bank = model.memory[index].double().numpy()
            found += stretched(distances(tokens, bank), size) / layers
    return float(score), heads, found


@pytest.fixture(scope="module")
def whole_model(tiny_clip_folder):
    return transformers.CLIPModel.from_pretrained(tiny_clip_folder).eval()


def run(detector, query):
    pixels = pixels_of(detector, query)
    with torch.no_grad():
        return detector.model(pixels), pixels


def test_few_shot_scores_and_maps(few_shot, queries, whole_model):
    output, pixels = run(few_shot, queries[1])
    score, heads, found = slow_parts(few_shot.model, pixels, whole_model)
    expected = (heads + found) / 2
    np.testing.assert_allclose(output.map[0], expected, atol=2e-4)
    assert float(output.score) == pytest.approx((score + expected.max()) / 2, abs=2e-4)
    assert few_shot.model.memory.shape == (4, 2 * 25, 32)  # no copies, no class tokens


def test_zero_shot_scores_and_maps(zero_shot, queries, whole_model):
    output, pixels = run(zero_shot, queries[0])
    score, heads, _ = slow_parts(zero_shot.model, pixels, whole_model)
    np.testing.assert_allclose(output.map[0], heads, atol=2e-4)
    assert float(output.score) == pytest.approx(score, abs=2e-4)
    assert zero_shot.model.memory is None


@pytest.mark.parametrize("abnormal", [0, 1])
def test_without_masks_the_map_is_the_memory(
    settings, make_support, queries, whole_model, abnormal
):
    detector = fit_support(make_support(1, abnormal, masks=False), settings())
    output, pixels = run(detector, queries[1])
    score, _, found = slow_parts(detector.model, pixels, whole_model)
    np.testing.assert_allclose(output.map[0], found / 2, atol=2e-4)
    assert float(output.score) == pytest.approx((score + found.max() / 2) / 2, abs=2e-4)


def test_zero_shot_needs_masks_somewhere(settings, phantoms):
    with pytest.raises(InputError, match="learns from masks"):
        fit_sources([d for d in phantoms if d.name == "Chest"], settings())


def test_the_loss_of_the_first_epoch(settings, make_support):
    """One batch of all images: what is reported is the loss before the first step."""
    said = []
    chosen = settings(epochs=1, copies=False, batch_size=4, learning_rate=1e-12)
    support = make_support()
    detector = fit_support(support, chosen, progress=lambda *args: said.append(args))
    model, expected = detector.model, 0.0
    text = model.text.double().numpy()
    for item in support:
        with torch.no_grad():
            taps = model.taps(model.encode(detector.preprocess(item.image)[None]))
            tokens = [
                head(tap)[0].double().numpy() for head, tap in zip(model.heads, taps, strict=True)
            ]
        mask = np.zeros((70, 70)) if item.mask is None else item.mask
        for rows in tokens:
            prob = layer_map(rows, text, 70)
            expected += focal(prob, mask) + dice(prob, mask)
    assert detector.card.losses["loss"] == pytest.approx(expected / 4, rel=1e-4)
    assert ("train", 1, 1, f"loss {expected / 4:.3f}") in said


def test_sources_are_described_in_their_own_words(settings, phantoms, monkeypatch):
    """Chest has no masks, so its directions are never asked for; the others' are."""
    asked = []
    original = april_gan.anchors_of

    def watch(features, images, indices):
        asked.extend(images.domains[images.domain[i]] for i in indices)
        return original(features, images, indices)

    monkeypatch.setattr(april_gan, "anchors_of", watch)
    fit_sources(phantoms, settings(epochs=1))
    assert sorted(set(asked)) == ["Brain", "Liver"]
    assert len(asked) == 8


def test_only_images_that_teach_are_encoded(settings, phantoms):
    """Chest has no masks: of its images, which may be most, no token is ever asked for."""
    said = []
    detector = fit_sources(phantoms, settings(epochs=1), progress=lambda *args: said.append(args))
    assert [args for args in said if args[0] == "encode"][-1][1:3] == (8, 8)
    assert len(detector.card.support) == 12


@pytest.mark.parametrize(
    ("name", "layers", "parameters"),
    [("clip-vit-b16", (3, 6, 9), 1_181_184), ("clip-vit-l14-336", None, 3_148_800)],
)
def test_the_published_number_of_parameters(name, layers, parameters):
    entry = ENCODERS[name]
    with torch.device("meta"):
        vision = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**entry.config))
        encoder = Encoder(vision, name=name, checksum="", input_px=240, layers=layers)
        model = april_gan.build(encoder, april_gan.Options())
    assert model.num_trainable_parameters == parameters


def test_saved_and_loaded_scores_are_the_same(few_shot, queries, tmp_path):
    check_saved(few_shot, queries, tmp_path / "bundle")


def test_a_zero_shot_detector_comes_back(zero_shot, queries, tmp_path):
    check_saved(zero_shot, queries, tmp_path / "bundle")


def test_scores_do_not_depend_on_the_batch(few_shot, queries):
    check_batches(few_shot, queries)


def test_seeds_and_interruption(settings, make_support, tmp_path):
    check_seeds_and_interruption(make_support(1, 1), settings(), tmp_path)


def test_layers_need_not_reach_the_end(peer_settings, make_support, queries, whole_model):
    chosen = peer_settings("april_gan", encoder={"layers": (2, 5)}, options={**FEW, "epochs": 1})
    detector = fit_support(make_support(1, 1), chosen)
    output, pixels = run(detector, queries[2])
    score, heads, found = slow_parts(detector.model, pixels, whole_model)
    expected = (heads + found) / 2
    np.testing.assert_allclose(output.map[0], expected, atol=2e-4)
    assert float(output.score) == pytest.approx((score + expected.max()) / 2, abs=2e-4)


def test_published_settings():
    settings = resolve_settings("official", method="april_gan")
    assert (settings.encoder.name, settings.encoder.input_px) == ("clip-vit-l14-336", 518)
    assert settings.encoder.normalise == "own"
    assert settings.options.batch_size == 8
