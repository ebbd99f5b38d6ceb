import math

import numpy as np
import pytest
import torch

import recap
from recap.data.support import gather_support
from recap.encoders.load import load_encoder
from recap.encoders.vit import Encoder
from recap.errors import InputError, TrainingError
from recap.methods.recap import losses, teach
from recap.methods.recap.head import ReCAP
from recap.scoring.fit import fingerprint, fit_support


def test_same_seed_is_the_same_bytes(arrays, tiny_settings, bytes_of):
    settings = tiny_settings(seed=5)
    first = bytes_of(recap.fit(**arrays, settings=settings))
    torch.manual_seed(99)  # the state of the global generator must not matter
    torch.rand(3)
    assert bytes_of(recap.fit(**arrays, settings=settings)) == first
    assert list(first) == ["bundle.json", "head.safetensors"]


def test_another_seed_is_another_detector(arrays, tiny_settings, bytes_of):
    one, two = (bytes_of(recap.fit(**arrays, settings=tiny_settings(seed=s))) for s in (0, 1))
    assert one["head.safetensors"] != two["head.safetensors"]


@pytest.mark.parametrize("preset", ["fast", "recap"])
@pytest.mark.parametrize("given", [("normal",), ("normal", "abnormal"), None])
def test_neither_fitting_nor_loading_touches_the_global_generator(
    preset, given, arrays, tiny_settings, tmp_path
):
    support = {name: arrays[name] for name in given or arrays}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    detector = recap.fit(**support, settings=tiny_settings(preset, training={"epochs": 1}))
    detector.save(tmp_path / "a.recap")
    recap.load(tmp_path / "a.recap")
    assert torch.rand(1) == expected


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_training_lowers_the_loss(preset, arrays, tiny_settings):
    losses = []
    for epochs in (1, 12):
        training = {"epochs": epochs, "batch_size": 2, "learning_rate": 5e-3}
        # At 100 this random encoder saturates the score, where its clamp passes no gradient.
        settings = tiny_settings(preset, training=training, model={"logit_scale": 10})
        losses.append(recap.fit(**arrays, settings=settings).card.losses)
    assert losses[1]["loss"] < 0.7 * losses[0]["loss"]
    assert losses[1]["segmentation"] < losses[0]["segmentation"]
    assert losses[1]["detection"] < losses[0]["detection"]


def test_training_changes_the_head_and_never_the_encoder(arrays, tiny_settings):
    # At a scale of 100 all scores of a random encoder are 1, and nothing pulls at them.
    settings = tiny_settings("paper", training={"epochs": 1}, model={"logit_scale": 10})
    detector = recap.fit(**arrays, settings=settings)
    before = load_encoder(settings.encoder).state_dict()
    after = detector.model.encoder.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert detector.model.scores.theta.abs().max() > 0


def slow_token(adapter, tap):
    """One token through an adapter, from the equation."""
    raw = adapter.down.weight.double() @ tap.double()
    return torch.where(raw > 0, raw, 0.01 * raw)


@pytest.mark.parametrize("augment", [False, True])
def test_prototypes_start_at_the_support_means(augment, arrays, tiny_settings, monkeypatch):
    """Augmented copies take no part in the start."""
    monkeypatch.setattr(teach, "train", lambda *args: {})
    detector = recap.fit(**arrays, settings=tiny_settings(training={"augment": augment}))
    model = detector.model
    with torch.no_grad():
        for kind, name in enumerate(["normal", "abnormal"]):
            images = [recap.Image(array, "a") for array in arrays[name]]
            taps = [model.encoder.taps(detector.preprocess(image)[None])[0] for image in images]
            for layer in range(4):
                for branch in (0, 1):
                    adapter = (model.maps, model.scores)[branch].adapters[layer]
                    tokens = [slow_token(adapter, t) for tap in taps for t in tap[layer]]
                    mean = sum(tokens) / len(tokens)
                    expected = mean / math.sqrt(float(mean @ mean))
                    start = (model.maps, model.scores)[branch].pairs[layer].base[kind].double()
                    assert torch.allclose(start, expected, atol=1e-5)


def test_normal_images_alone_train_nothing(arrays, tiny_settings, monkeypatch):
    monkeypatch.setattr(teach, "train", lambda *args: pytest.fail("trained"))
    detector = recap.fit(arrays["normal"], settings=tiny_settings())
    card, memory = detector.card, detector.model.memory
    assert card.mode == "normal-only"
    assert "nothing was trained" in card.statement
    assert card.losses == {}
    taps = [
        detector.model.encoder.taps(detector.preprocess(recap.Image(a, "a"))[None])[0]
        for a in arrays["normal"]
    ]
    raw = torch.cat(taps, dim=1)  # (L, 3 * 25, width)
    assert memory.rows.shape == (4, 1, 75, 32)
    assert torch.allclose(memory.rows[:, 0], raw / raw.norm(dim=-1, keepdim=True), atol=1e-6)
    prediction = detector.score(arrays["normal"][1])
    assert prediction.score_prototype is None
    assert prediction.score == prediction.score_memory < 1e-5
    assert detector.score(arrays["abnormal"][0]).score > prediction.score + 1e-3


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_memory_holds_the_normal_tokens_after_training(preset, arrays, tiny_settings):
    detector = recap.fit(**arrays, settings=tiny_settings(preset))
    assert detector.card.mode == "few-shot"
    assert detector.model.memory.rows.shape == (4, 2, 75, 32)
    assert all(detector.score(a).score_memory < 1e-5 for a in arrays["normal"])
    assert detector.score(arrays["abnormal"][0]).score_memory > 1e-4


@pytest.mark.parametrize("with_abnormal", [False, True])
def test_coreset_caps_the_memory(with_abnormal, arrays, tiny_settings):
    given = arrays if with_abnormal else {"normal": arrays["normal"]}
    detector = recap.fit(**given, settings=tiny_settings(memory={"coreset": 7}))
    assert detector.model.memory.rows.shape[2] == 7
    generous = recap.fit(**given, settings=tiny_settings(memory={"coreset": 10_000}))
    assert generous.model.memory.rows.shape[2] == 75


def test_without_masks_the_map_is_not_supervised(arrays, tiny_settings):
    detector = recap.fit(arrays["normal"], arrays["abnormal"], settings=tiny_settings())
    assert detector.card.losses["segmentation"] == 0
    assert detector.card.losses["detection"] > 0
    assert torch.equal(detector.model.maps.theta, torch.zeros(4))
    assert detector.score(arrays["abnormal"][0]).map.shape == (70, 70)


def test_some_masks_supervise_some_maps(arrays, tiny_settings):
    fits = {
        name: recap.fit(arrays["normal"], arrays["abnormal"], masks, settings=tiny_settings())
        for name, masks in {"some": [arrays["masks"][0], None], "all": arrays["masks"]}.items()
    }
    assert 0 < fits["some"].card.losses["segmentation"] < fits["all"].card.losses["segmentation"]
    assert [r["mask_sha256"] is None for r in fits["some"].card.support[3:]] == [False, True]


def test_no_normal_images(arrays, tiny_settings):
    with pytest.raises(InputError, match="no normal images"):
        recap.fit([], arrays["abnormal"], settings=tiny_settings())


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_a_loss_that_is_not_a_number_stops_training(preset, arrays, tiny_settings, monkeypatch):
    seen = []

    def failing(scores, labels):
        seen.append(1)
        return scores * (math.nan if len(seen) > 2 else 1.0)

    monkeypatch.setattr(losses, "detection_loss", failing)
    with pytest.raises(TrainingError, match=r"became nan in epoch 3.*training\.learning_rate"):
        recap.fit(**arrays, settings=tiny_settings(preset, training={"epochs": 5, "batch_size": 5}))


def test_a_last_step_into_nowhere_stops_training(arrays, tiny_settings):
    """The only step overflows, so that no later loss could tell."""
    absurd = {"epochs": 1, "batch_size": 5, "learning_rate": 1e39}
    with pytest.raises(TrainingError, match=r"training\.learning_rate"):
        recap.fit(**arrays, settings=tiny_settings(training=absurd))


def test_conditioning_variants_all_train(arrays, tiny_settings):
    for conditioning in ("bounded", "unbounded", "static", "tokens"):
        settings = tiny_settings(model={"conditioning": conditioning}, training={"epochs": 1})
        assert math.isfinite(recap.fit(**arrays, settings=settings).card.losses["loss"])


def test_the_card_says_what_it_was_fitted_on(arrays, tiny_settings):
    settings = tiny_settings(seed=4)
    detector = recap.fit(**arrays, settings=settings)
    card = detector.card
    assert card.settings == settings
    assert [r["label"] for r in card.support] == ["normal"] * 3 + ["abnormal"] * 2
    assert [r["name"] for r in card.support][:2] == ["normal[0]", "normal[1]"]
    assert len({r["sha256"] for r in card.support}) == 5
    assert set(card.losses) == {"loss", "segmentation", "detection", "separation"}
    parts = sum(card.losses[k] for k in ("segmentation", "detection", "separation"))
    assert card.losses["loss"] == pytest.approx(parts, rel=1e-5)
    assert {"recap-ad", "torch", "numpy"} <= card.versions.keys()
    low, high = card.map_scale
    assert 0 <= low < high <= 1


def test_fingerprint_depends_on_images_masks_and_settings(arrays, tiny_settings):
    def mark(**sections):
        settings = tiny_settings(**sections)
        return recap.fit(**arrays, settings=settings).card.fingerprint

    quick = {"epochs": 1, "batch_size": 5}
    found = {mark(training=quick), mark(training=quick, seed=1)}
    arrays["masks"][0] = np.roll(arrays["masks"][0], 1)
    found.add(mark(training=quick))
    arrays["normal"][0] = arrays["normal"][0] * 0.99
    found.add(mark(training=quick))
    assert len(found) == 4


def test_fingerprint_depends_on_all_that_changes_tokens(tiny_encoder, tiny_settings, monkeypatch):
    def mark(**changes):
        given = {"name": "tiny", "checksum": "tiny", "input_px": 70, **changes}
        return fingerprint("few-shot", tiny_settings(), Encoder(tiny_encoder.model, **given), [])

    plain = mark()
    assert mark(mean=(0.5, 0.5, 0.5)) != plain
    assert mark(std=(0.5, 0.5, 0.5)) != plain
    monkeypatch.setattr(tiny_encoder.model.config, "layer_norm_eps", 0.1)
    assert mark() != plain


def test_what_is_kept_of_tokens_is_no_part_of_the_fingerprint(tiny_encoder, tiny_settings):
    """It changes no number: a fit that finds the disk full is told to go on with less."""
    marks = [
        fingerprint("few-shot", tiny_settings(training={"cache_gb": kept}), tiny_encoder, [])
        for kept in (8.0, 0.0)
    ]
    assert marks[0] == marks[1]


def test_augmented_fit_sees_eleven_copies(arrays, tiny_settings, count_calls):
    encoded = count_calls(ReCAP, "encode")
    settings = tiny_settings(training={"augment": True, "epochs": 1, "batch_size": 55})
    fit_support(gather_support(**arrays), settings)
    assert len(encoded) == 11 * 5 + 1  # and one to learn the shape of the tokens


@pytest.mark.parametrize("same", [False, True])
def test_a_fit_that_learned_nothing_says_so(same, arrays, tiny_settings):
    """Where both classes show the same images, no head can do better than guess."""
    alike = [0.999 * array for array in arrays["normal"]]
    abnormal = alike if same else arrays["abnormal"]
    training = {"epochs": 12, "learning_rate": 5e-3}
    settings = tiny_settings("fast", training=training, model={"logit_scale": 10})
    card = recap.fit(arrays["normal"], abnormal, settings=settings).card
    assert ("did not tell normal from abnormal" in card.statement) == same
    assert (card.losses["detection"] > 0.65) == same
