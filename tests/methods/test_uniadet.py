"""UniADet against a slow reading of its equations, and as a detector among others."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from holds import check_batches, check_saved, check_seeds_and_interruption
from sklearn.metrics import log_loss

import recap
from recap.encoders.load import load_encoder
from recap.encoders.registry import ENCODERS
from recap.encoders.vit import Encoder
from recap.errors import InputError, SettingsError
from recap.methods import uniadet
from recap.methods.recap.maps import interpolation_matrix
from recap.methods.registry import resolve_settings
from recap.methods.uniadet import IMAGE, PIXEL, Options, UniADet, tapped_levels
from recap.scoring.fit import fit_sources, fit_support


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def abnormal_probability(token: np.ndarray, weights: np.ndarray) -> float:
    """Softmax of the two cosines over τ = 0.07."""
    normal, abnormal = (math.exp(unit(token) @ unit(w) / 0.07) for w in weights)
    return abnormal / (normal + abnormal)


@torch.no_grad()
def slow_tokens(model: UniADet, pixels: torch.Tensor) -> list[np.ndarray]:
    """Per level (1 + R, C), by transformers' own forward."""
    encoder = model.encoder
    clip = encoder.model
    inputs = (pixels - encoder.mean) / encoder.std
    hidden = clip(inputs, output_hidden_states=True).hidden_states
    return [clip.post_layernorm(hidden[level])[0].double().numpy() for level in model.levels]


def slow_map(values: np.ndarray) -> np.ndarray:
    matrix = interpolation_matrix(5, 70, 14, "centres").double().numpy()
    return matrix @ values.reshape(5, 5) @ matrix.T


def slow_output(model: UniADet, pixels: torch.Tensor) -> tuple[float, np.ndarray]:
    images, maps, far = [], [], []
    for level, tokens in enumerate(slow_tokens(model, pixels)):
        weights = model.weights[level].detach().double().numpy()
        images.append(abnormal_probability(tokens[0], weights[IMAGE]))
        logits = [
            slow_map(np.array([unit(t) @ unit(w) / 0.07 for t in tokens[1:]]))
            for w in weights[PIXEL]
        ]
        maps.append(np.exp(logits[1]) / (np.exp(logits[0]) + np.exp(logits[1])))
        if model.memory is not None:
            rows = model.memory[level].double().numpy()
            far.append([min(1 - unit(t) @ row for row in rows) for t in tokens[1:]])
    fused = np.mean(maps, axis=0)
    if far:
        fused = 0.5 * fused + 0.5 * slow_map(np.mean(far, axis=0))
    return 0.5 * np.mean(images) + 0.5 * fused.max(), fused


@pytest.fixture
def model(peer_settings) -> UniADet:
    torch.manual_seed(2)
    return uniadet.build(load_encoder(peer_settings("uniadet").encoder), Options()).eval()


@pytest.mark.parametrize("remembers", [False, True])
def test_map_and_score_are_those_of_the_equations(remembers, model):
    if remembers:
        rows = torch.nn.functional.normalize(torch.randn(5, 40, 32), dim=-1)
        model.memory = rows
    pixels = torch.rand(1, 3, 70, 70)
    score, expected = slow_output(model, pixels)
    with torch.no_grad():
        output = model(pixels)
    np.testing.assert_allclose(output.map[0].numpy(), expected, atol=1e-5)
    assert float(output.score) == pytest.approx(score, abs=1e-5)


def test_the_loss_is_that_of_the_equations(model):
    pixels, masks = torch.rand(2, 3, 70, 70), torch.zeros(2, 70, 70, dtype=torch.bool)
    masks[0, 10:40, 20:50] = True
    m, expected = masks[0].numpy(), 0.0
    for index, label in enumerate([1, 0]):
        for level, tokens in enumerate(slow_tokens(model, pixels[index : index + 1])):
            weights = model.weights[level].detach().double().numpy()
            expected += log_loss(
                [label], [abnormal_probability(tokens[0], weights[IMAGE])], labels=[0, 1]
            )
            if index == 1:
                continue  # its map is not supervised
            difference = [unit(t) @ (unit(weights[PIXEL][1]) - unit(weights[PIXEL][0]))
                          for t in tokens[1:]]  # fmt: skip
            p = 1 / (1 + np.exp(-slow_map(np.array(difference)) / 0.07))
            # The one-hot target is held off 0 and 1, and the probability off 0.
            p_true = np.where(m, p, 1 - p) * (1 - 1e-5) + np.where(m, 1 - p, p) * 1e-5 + 1e-5
            expected += ((1 - p_true) ** 2 * -np.log(p_true)).mean()
            expected += 1 - (2 * p[m].sum() + 1) / (p.sum() + m.sum() + 1)
    labels = torch.tensor([True, False])
    loss = model.loss(model.encode(pixels), labels, masks, labels)
    assert loss.item() == pytest.approx(expected / 2 / 5, rel=1e-4)


def test_weights_start_small(model):
    assert float(model.weights.detach().std()) == pytest.approx(0.02, rel=0.15)


def counted(name: str, **sizes: Any) -> int:
    with torch.device("meta"):
        config = getattr(transformers, f"{name}Config")(**sizes)
        vit = getattr(transformers, f"{name}Model")(config)
        model = UniADet(Encoder(vit, name="", checksum="", input_px=240), Options())
    return model.num_trainable_parameters


def test_the_published_numbers_of_parameters():
    narrow = ENCODERS["clip-vit-b16"].config
    assert narrow["hidden_size"] == 768
    assert counted("CLIPVision", **narrow) == 15_360
    wide = {k: v for k, v in ENCODERS["dinov2-large"].config.items() if k != "mlp_ratio"}
    assert counted("Dinov2WithRegisters", **wide) == 20_480


@pytest.mark.parametrize(
    ("depth", "levels"),
    [(24, (12, 15, 18, 21, 24)), (12, (6, 8, 9, 10, 12)), (8, (4, 5, 6, 7, 8)), (1, (1,))],
)
def test_levels_are_fractions_of_the_depth(depth, levels):
    assert tapped_levels(depth, Options().depths) == levels


def test_an_encoder_without_a_class_token_takes_the_mean_of_its_patches():
    config = transformers.SiglipVisionConfig(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64,
        patch_size=14, image_size=70,
    )  # fmt: skip
    vit = transformers.SiglipVisionModel(config)
    model = UniADet(Encoder(vit, name="", checksum="", input_px=70), Options(depths=(1.0,)))
    pixels = torch.rand(1, 3, 70, 70)
    tokens = model.encode(pixels)
    assert tokens.shape == (1, 1, 26, 32)
    last = model.encoder.model(pixels).last_hidden_state[0].mean(dim=0)
    assert torch.allclose(tokens[0, 0, 0], last / last.norm(), atol=1e-5)


@pytest.fixture
def quick(peer_settings):
    return peer_settings("uniadet", options={"epochs": 3, "batch_size": 11})


def test_saved_batched_and_single_scores_agree(quick, make_support, queries, tmp_path):
    detector = fit_support(make_support(), quick)
    check_saved(detector, queries, tmp_path / "bundle")
    check_batches(detector, queries)
    assert all(0 <= detector.score(query).score <= 1 for query in queries)


@pytest.mark.parametrize(("stage", "at"), [("encode", 8), ("train", 2)])
def test_a_fit_is_decided_by_its_seed_and_goes_on_after_a_kill(
    stage, at, quick, make_support, tmp_path
):
    check_seeds_and_interruption(make_support(), quick, tmp_path, (stage, at))


def test_few_shot_remembers_the_normal_images_alone(quick, make_support):
    support = make_support(normal=3)
    model = fit_support(support, quick).model
    assert model.memory.shape == (5, 3 * 25, 32)
    normal = torch.from_numpy(support[0].image.pixels).expand(3, -1, -1)[None]
    tokens = model.encode(normal)
    assert model._distance(tokens, model.memory).abs().max() < 1e-5


def test_without_its_share_there_is_no_memory(peer_settings, make_support):
    options = {"epochs": 1, "memory_weight": 0}
    model = fit_support(make_support(), peer_settings("uniadet", options=options)).model
    assert model.memory is None


def test_without_masks_the_map_is_the_memorys(quick, make_support, queries):
    detector = fit_support(make_support(masks=False), quick)
    model = detector.model
    assert not model.weights[:, PIXEL].any()
    assert model.weights[:, IMAGE].any()
    image = recap.Image(queries[1], "a")
    pixels = detector.preprocess(image)[None]
    far = model.to_pixels(model._distance(model.encode(pixels), model.memory))
    torch.testing.assert_close(detector.raw_output([image]).map, 0.25 + 0.5 * far)


def test_zero_shot_has_no_memory_and_no_copies(phantoms, peer_settings, monkeypatch):
    seen = []
    original = uniadet.train
    monkeypatch.setattr(
        uniadet, "train", lambda *a, **k: seen.append((a[3], k["epochs"])) or original(*a, **k)
    )
    detector = fit_sources(phantoms, peer_settings("uniadet"))
    assert detector.model.memory is None
    assert seen == [(12, 15)]
    assert detector.model.weights[:, PIXEL].any()


def test_training_tells_the_support_apart(peer_settings, make_support):
    options = {"epochs": 20, "batch_size": 11, "learning_rate": 0.01}
    support = make_support(normal=3, abnormal=3)
    detector = fit_support(support, peer_settings("uniadet", options=options))
    scores = [detector.score(item.image).score for item in support]
    assert max(scores[:3]) < min(scores[3:])
    inside = detector.score(support[3].image).map
    assert inside[support[3].mask].mean() > inside[~support[3].mask].mean()


def test_normal_images_alone_are_refused(quick, make_support):
    with pytest.raises(InputError, match="UniADet needs abnormal images"):
        fit_support(make_support(abnormal=0), quick)


@pytest.mark.parametrize("depths", [[], [0.0, 1.0], [1.5]])
def test_impossible_depths_are_refused(depths, peer_settings):
    with pytest.raises(SettingsError, match=r"options\.depths"):
        peer_settings("uniadet", options={"depths": depths})


def test_official_is_the_published_encoder_and_size():
    settings = resolve_settings("official", method="uniadet")
    assert settings.encoder.name == "facebook/dinov2-with-registers-large"
    assert settings.encoder.input_px == 518
    assert settings.options.epochs == 15


@pytest.mark.parametrize("normal", [1, 3])
def test_maps_are_drawn_on_a_scale_of_images_that_are_not_remembered(quick, make_support, normal):
    """On that of its own rows every pixel of an unseen normal image would glow."""
    support = make_support(normal=normal + 1, abnormal=2)
    unseen = support.pop(0)
    low, high = fit_support(support, quick).card.map_scale
    shown = fit_support(support, quick).score(unseen.image).map
    assert (shown < high).mean() > 0.9
    assert high - low > 2e-3
