"""VisualAD against a slow reading of its equations, and as a detector among others."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from holds import check_batches, check_saved, check_seeds_and_interruption
from scipy.ndimage import gaussian_filter

from recap.encoders.load import load_encoder
from recap.encoders.registry import ENCODERS
from recap.encoders.vit import Encoder
from recap.errors import InputError
from recap.methods import visualad
from recap.methods.registry import resolve_settings
from recap.methods.visualad import Options, VisualAD, clip_each, cosine_to, optimiser_of
from recap.scoring.fit import fit_sources, fit_support


def array(value: Any) -> np.ndarray:
    return value.detach().double().numpy()


def layer_norm(rows: np.ndarray, module: Any) -> np.ndarray:
    mean, variance = rows.mean(-1, keepdims=True), rows.var(-1, keepdims=True)
    scaled = (rows - mean) / np.sqrt(variance + module.eps)
    return scaled * array(module.weight) + array(module.bias)


def linear(rows: np.ndarray, module: Any) -> np.ndarray:
    out = rows @ array(module.weight).T
    return out if module.bias is None else out + array(module.bias)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def attended(token: np.ndarray, patches: np.ndarray, sca: Any) -> np.ndarray:
    """One token after the cross-attention of one layer, patch by patch."""
    queries = layer_norm(linear(array(sca.anchors), sca.query), sca.query_norm)
    keys = layer_norm(linear(patches + array(sca.positions)[: len(patches)], sca.key), sca.key_norm)
    values = linear(patches, sca.value)
    gates = 1 / (1 + np.exp(-linear(token, sca.gate)))
    total = np.zeros_like(token)
    for query, gate in zip(queries, gates, strict=True):
        weights = np.exp([query @ key / math.sqrt(len(token)) for key in keys])
        for weight, value in zip(weights / weights.sum(), values, strict=True):
            total += gate * weight * value
    return token + float(sca.scale.detach()) * linear(total, sca.out)


def stretched(values: np.ndarray, size: int) -> np.ndarray:
    """Bilinear, pixel by pixel, corners not aligned."""
    grid, out = len(values), np.zeros((size, size))

    def around(pixel: int) -> tuple[int, int, float]:
        place = max((pixel + 0.5) * grid / size - 0.5, 0)
        low = min(int(place), grid - 1)
        return low, min(low + 1, grid - 1), place - low

    for row in range(size):
        top, bottom, down = around(row)
        for column in range(size):
            left, right, along = around(column)
            upper = values[top, left] * (1 - along) + values[top, right] * along
            lower = values[bottom, left] * (1 - along) + values[bottom, right] * along
            out[row, column] = upper * (1 - down) + lower * down
    return out


@torch.no_grad()
def states(model: VisualAD, pixels: torch.Tensor) -> dict[int, np.ndarray]:
    """Hidden states of transformers' own CLIP blocks, the two tokens standing in front."""
    clip, encoder = model.encoder.model, model.encoder
    patches = clip.embeddings.patch_embedding((pixels - encoder.mean) / encoder.std)
    rows = torch.cat([model.tokens, clip.embeddings.class_embedding[None], patches[0].flatten(1).T])
    table = clip.embeddings.position_embedding.weight
    x = clip.pre_layrnorm((rows + torch.cat([table[:1], table[:1], table]))[None])
    out = {}
    for number, block in enumerate(clip.encoder.layers, 1):
        x = block(x, attention_mask=None)
        out[number] = array(x[0])
    return out


def slow_difference(model: VisualAD, pixels: torch.Tensor) -> np.ndarray:
    """(L, g, g)"""
    hidden, grid = states(model, pixels), model.encoder.grid
    abnormal, normal = layer_norm(hidden[8][:2], model.norm)
    maps = []
    for layer, sca, mlp in zip(model.encoder.layers, model.attention, model.align, strict=True):
        patches = layer_norm(hidden[layer][3:], model.norm)
        towards = attended(abnormal, patches, sca)
        away = attended(normal, patches, sca)
        aligned = linear(gelu(linear(patches, mlp[0])), mlp[3])
        maps.append([cosine(patch, towards) - cosine(patch, away) for patch in aligned])
    return np.array(maps).reshape(-1, grid, grid)


@pytest.fixture
def model(peer_settings) -> VisualAD:
    """At 75 px: five pixels that no patch covers. Nothing is at a start that hides mistakes."""
    settings = peer_settings("visualad", encoder={"input_px": 75})
    torch.manual_seed(1)
    built = visualad.build(load_encoder(settings.encoder), Options())
    for name, parameter in built.named_parameters():
        if parameter.requires_grad:
            kept = 1.0 if "norm" in name and "weight" in name else 0.0
            torch.nn.init.normal_(parameter, mean=kept, std=0.3)
    return built.eval()


def test_map_and_score_are_those_of_the_equations(model):
    pixels = torch.rand(1, 3, 75, 75)
    total = sum(stretched(layer, 75) for layer in slow_difference(model, pixels))
    expected = gaussian_filter(total, 4)
    with torch.no_grad():
        output = model(pixels)
    np.testing.assert_allclose(output.map[0].numpy(), expected, atol=2e-5)
    top = np.sort(expected, axis=None)[-57:]  # 1 % of 5625 pixels, rounded up
    assert float(output.score) == pytest.approx(top.mean(), abs=2e-5)


def test_the_loss_is_that_of_the_equations(model):
    pixels = torch.rand(2, 3, 75, 75)
    masks = torch.zeros(2, 75, 75, dtype=torch.bool)
    masks[0, 10:40, 20:50] = True
    labels = [1.0, 0.0]
    expected = 0.0
    for index, label in enumerate(labels):
        one = pixels[index : index + 1]
        maps = [stretched(layer, 75) for layer in slow_difference(model, one)]
        score = np.sort(sum(maps), axis=None)[-57:].mean()
        p = 1 / (1 + math.exp(-score))
        expected -= math.log(p if label else 1 - p)
        hidden = states(model, one)
        ends = layer_norm(hidden[8], model.norm)
        last = [attended(token, ends[3:], model.attention[-1]) for token in ends[:2]]
        expected += max(0.0, cosine(*last) + 0.5)
        if index == 1:
            continue  # its map is not supervised
        for values in maps:
            p_map, m = 1 / (1 + np.exp(-values)), masks[index].numpy()
            p_true = np.where(m, p_map, 1 - p_map)
            expected += ((1 - p_true) ** 2 * -np.log(p_true)).mean()
            expected += 1 - (2 * p_map[m].sum() + 1) / (p_map.sum() + m.sum() + 1)
    loss = model.loss(pixels, torch.tensor(labels) > 0, masks, torch.tensor([True, False]))
    assert loss.item() == pytest.approx(expected / 2, rel=1e-4)


def test_images_without_any_mask_still_train(model):
    loss = model.loss(
        torch.rand(2, 3, 75, 75), torch.tensor([True, False]), torch.zeros(2, 75, 75).bool(),
        torch.tensor([False, False]),
    )  # fmt: skip
    loss.backward()
    assert loss.isfinite()
    assert model.tokens.grad.abs().max() > 0


def test_gradients_reach_the_heads_and_never_the_encoder(model):
    model.train()
    labels, masks = torch.tensor([True, False]), torch.zeros(2, 75, 75).bool()
    model.loss(torch.rand(2, 3, 75, 75), labels, masks, ~labels).backward()
    named = dict(model.named_parameters())
    assert all(named[n].grad is None for n in named if n.startswith("encoder."))
    trained = {n: p for n, p in named.items() if not n.startswith("encoder.")}
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in trained.values())


def test_tokens_learn_along_a_cosine_and_heads_at_a_tenth_throughout(model):
    tokens, heads = optimiser_of(model).param_groups
    assert [p.shape for p in tokens["params"]] == [(2, 32)]
    assert (tokens["lr"], heads["lr"]) == pytest.approx((1e-3, 1e-4))
    assert tokens["weight_decay"] == heads["weight_decay"] == 0.01
    rate = cosine_to(visualad.FINAL_RATE * 1e-3, 10)
    published = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser_of(model), 10, eta_min=1e-4)
    for epoch in range(10):
        assert [rate(tokens["lr"], epoch), rate(heads["lr"], epoch)] == pytest.approx(
            published.get_last_lr()
        )
        published.optimizer.step()
        published.step()
    assert rate(1e-3, 5) == pytest.approx(5.5e-4)
    assert rate(1e-4, 5) == pytest.approx(1e-4)


def test_a_fit_uses_that_schedule(quick, make_support, monkeypatch):
    rates = []

    class Watched(torch.optim.AdamW):
        def step(self, *args):
            rates.append(tuple(group["lr"] for group in self.param_groups))
            return super().step(*args)

    monkeypatch.setattr(torch.optim, "AdamW", Watched)
    fit_support(make_support(), quick)
    half = len(rates) // 2
    assert rates[:half] == half * [pytest.approx((0.01, 0.001))]
    assert rates[half:] == half * [pytest.approx((0.0055, 0.001))]


def test_a_long_gradient_of_one_token_does_not_shorten_the_other_s():
    tokens = torch.nn.Parameter(torch.zeros(2, 3))
    clip_each(tokens, 1.0)  # nothing to do before there are gradients
    tokens.grad = torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.6, 0.0]])
    clip_each(tokens, 1.0)
    expected = [[0.6, 0, 0.8], [0, 0.6, 0]]
    np.testing.assert_allclose(tokens.grad.numpy(), expected, atol=1e-6)


def test_what_is_learned_starts_as_published(peer_settings):
    torch.manual_seed(0)
    model = visualad.build(load_encoder(peer_settings("visualad").encoder), Options())
    sca = model.attention[0]
    assert float(model.tokens.detach().std()) == pytest.approx(0.1 / math.sqrt(32), rel=0.25)
    assert float(sca.scale.detach()) == pytest.approx(0.01)
    for table in (sca.anchors, sca.positions):
        assert float(table.detach().std()) == pytest.approx(0.02, rel=0.2)


def test_each_token_drops_weights_of_its_own():
    torch.manual_seed(0)
    sca, averaged = visualad.SpatialCrossAttention(32, 9, dropout=0.5), []
    sca.value.register_forward_hook(lambda module, given, out: averaged.append(given[0][0]))
    for training in (False, True):
        sca.train(training)
        sca(torch.rand(1, 2, 32), torch.rand(1, 9, 32))
        for_abnormal, for_normal = averaged.pop().chunk(2)
        assert torch.equal(for_abnormal, for_normal) is not training


@pytest.fixture(scope="module")
def clip_large() -> VisualAD:
    entry = ENCODERS["clip-vit-l14-336"]
    with torch.device("meta"):
        clip = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**entry.config))
        return VisualAD(Encoder(clip, name="", checksum="", input_px=240), Options())


def test_the_published_number_of_parameters(clip_large):
    heads = [*clip_large.attention.parameters(), *clip_large.align.parameters()]
    assert sum(p.numel() for p in heads) == 31_518_740
    assert clip_large.attention[0].positions.shape == (1536, 1024)
    beside = 2 * 1024 + 2 * 1024  # the two tokens and the norm
    assert clip_large.num_trainable_parameters == 31_518_740 + beside


def test_a_grid_beyond_the_published_table_gets_its_own_positions():
    sca = visualad.SpatialCrossAttention(32, 40 * 40, 0.0)
    assert sca(torch.rand(1, 2, 32), torch.rand(1, 1600, 32)).shape == (1, 2, 32)


FAMILIES = {
    "dinov2_with_registers": {"num_register_tokens": 3},
    "dinov3_vit": {"num_register_tokens": 2},
    "siglip_vision_model": {},
    "siglip2_vision_model": {"num_patches": 25},
    "vit": {},
}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_scores(family):
    from recap.encoders.registry import FAMILIES as KNOWN

    sizes = {} if family == "siglip2_vision_model" else {"image_size": 70}
    config = getattr(transformers, KNOWN[family].config_class)(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64,
        patch_size=14, **sizes, **FAMILIES[family],
    )  # fmt: skip
    vit = getattr(transformers, KNOWN[family].model_class)(config)
    model = VisualAD(Encoder(vit, name="", checksum="", input_px=70), Options()).eval()
    output = model(torch.rand(2, 3, 70, 70))
    assert output.map.shape == (2, 70, 70)
    assert output.map.isfinite().all()
    assert output.score.isfinite().all()


@pytest.fixture
def quick(peer_settings):
    """Two epochs, learning fast enough to leave a mark."""
    return peer_settings("visualad", options={"epochs": 2, "batch_size": 11, "learning_rate": 0.01})


def test_saved_batched_and_single_scores_agree(quick, make_support, queries, tmp_path):
    detector = fit_support(make_support(), quick)
    assert detector.card.mode == "few-shot"
    check_saved(detector, queries, tmp_path / "bundle")
    check_batches(detector, queries)


def test_a_fit_is_decided_by_its_seed_and_goes_on_after_a_kill(quick, make_support, tmp_path):
    check_seeds_and_interruption(make_support(), quick, tmp_path)


def test_zero_shot_and_its_epochs(phantoms, peer_settings, monkeypatch):
    seen = []
    original = visualad.train
    monkeypatch.setattr(
        visualad, "train", lambda *a, **k: seen.append((a[3], k["epochs"])) or original(*a, **k)
    )
    settings = peer_settings("visualad")
    detector = fit_sources(phantoms, settings)
    assert detector.card.mode == "zero-shot"
    assert seen == [(12, 2)]  # three domains of 2 + 2 images, no copies


def test_few_shot_takes_as_many_steps_as_published():
    # eleven copies of 2 K images, by eights
    epochs = {shots: visualad.few_shot_epochs(22 * shots, 8) for shots in (2, 4, 16)}
    assert epochs == {2: 73, 4: 40, 16: 10}
    assert visualad.few_shot_epochs(100_000, 8) == 1


def test_training_lowers_the_loss(peer_settings, make_support):
    losses = []
    for epochs in (1, 6):
        options = {"epochs": epochs, "batch_size": 11, "learning_rate": 0.01}
        losses.append(
            fit_support(make_support(), peer_settings("visualad", options=options)).card.losses
        )
    assert losses[1]["loss"] < 0.9 * losses[0]["loss"]


def test_normal_images_alone_are_refused(quick, make_support):
    with pytest.raises(InputError, match="VisualAD needs abnormal images"):
        fit_support(make_support(abnormal=0), quick)


def test_official_is_the_published_encoder_and_size():
    settings = resolve_settings("official", method="visualad")
    assert (settings.encoder.name, settings.encoder.input_px) == ("clip-vit-l14-336", 518)
    assert settings.options.batch_size == 8
