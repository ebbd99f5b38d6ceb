"""Fitting on normal images alone, with adapters that learn from made-up lesions."""

import numpy as np
import pytest
import torch

import recap
from recap.methods import features
from recap.methods import training as training_module
from recap.methods.recap import lessons, teach
from recap.methods.recap.head import ReCAP
from recap.scoring.explain import explain


@pytest.fixture
def settings(tiny_settings):
    return tiny_settings("recap")


def test_a_memory_of_adapted_tokens_and_nothing_else(arrays, settings):
    detector = recap.fit(arrays["normal"], settings=settings)
    card, model = detector.card, detector.model
    assert (card.mode, card.variant) == ("normal-only", "normals")
    assert "lesions made up on those images" in card.statement
    assert [record["label"] for record in card.support] == ["normal"] * 3
    assert card.losses["segmentation"] > 0
    assert card.losses["detection"] == 0
    assert (len(model.maps.adapters), len(model.maps.prototypes)) == (4, 0)
    assert model.memory.rows.shape == (4, 1, 75, 128)
    prediction = detector.score(arrays["normal"][1])
    assert prediction.score_prototype is None
    assert prediction.drift is None
    assert prediction.score == prediction.score_memory < 1e-5
    assert detector.score(arrays["abnormal"][0]).score > prediction.score + 1e-3


def test_the_score_is_the_distance_of_adapted_tokens(arrays, settings):
    """Reference: each patch through the adapter, against every remembered one."""
    detector = recap.fit(arrays["normal"], settings=settings)
    model, weights = detector.model, detector.model.maps.theta.softmax(dim=0)
    with torch.no_grad():
        pixels = [detector.preprocess(recap.Image(a, "a"))[None] for a in arrays["normal"]]
        taps = torch.cat([model.encoder.taps(p) for p in pixels])
        ill = recap.Image(arrays["abnormal"][1], "a")
        asked = model.encoder.taps(detector.preprocess(ill)[None])
        expected = 0.0
        for layer in range(4):
            down = model.maps.adapters[layer].down.weight

            def adapt(patch, down=down):
                raw = down @ patch
                return torch.where(raw > 0, raw, 0.01 * raw)

            rows = [adapt(patch) for image in taps[:, layer] for patch in image]
            nearest = []
            for patch in asked[0, layer]:
                token = adapt(patch)
                nearest.append(1 - max(torch.cosine_similarity(token, r, dim=0) for r in rows))
            peak = max(nearest)  # the highest 1 % of 25 patches is one patch
            expected += float(weights[layer] * peak / 2)
    assert detector.score(arrays["abnormal"][1]).score == pytest.approx(expected, rel=1e-4)


def test_saved_and_loaded_scores_and_explanations_are_the_same(arrays, settings, tmp_path):
    detector = recap.fit(arrays["normal"], settings=settings)
    detector.save(tmp_path / "a.recap")
    loaded = recap.load(tmp_path / "a.recap")
    assert not loaded.model.maps.prototypes
    for image in arrays["normal"] + arrays["abnormal"]:
        one, two = detector.score(image), loaded.score(image)
        assert one.score == two.score
        assert np.array_equal(one.map, two.map)
    found = explain(loaded, arrays["abnormal"][0])
    assert sum(part.amount for part in found.score_parts) == pytest.approx(found.score, abs=1e-6)
    assert {part.source for part in found.score_parts} == {"memory"}


def test_the_same_seed_is_the_same_bytes_and_another_is_not(arrays, tiny_settings, bytes_of):
    fits = [recap.fit(arrays["normal"], settings=tiny_settings("recap", seed=s)) for s in (1, 1, 2)]
    one, again, other = (bytes_of(detector)["head.safetensors"] for detector in fits)
    assert one == again != other


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_published_presets_train_nothing_unless_asked(preset, arrays, tiny_settings):
    plain = recap.fit(arrays["normal"], settings=tiny_settings(preset))
    assert not plain.model.maps.adapters
    asked = tiny_settings(preset, training={"made_up_lesions": True})
    learned = recap.fit(arrays["normal"], settings=asked)
    assert learned.model.maps.adapters
    assert learned.model.memory.rows.shape == (4, 2, 75, 32)  # both branches
    assert learned.score(arrays["abnormal"][0]).score > learned.score(arrays["normal"][0]).score


def test_copies_have_lesions_each_and_some_images_teach(arrays, tiny_settings, monkeypatch):
    """Of five images two teach; all five are remembered."""
    sets, original = [], teach.train

    def train(model, lesson, images, chosen, *rest):
        sets.append(images.some(chosen))
        return original(model, lesson, images, chosen, *rest)

    monkeypatch.setattr(teach, "train", train)
    for module in (teach, lessons):
        monkeypatch.setattr(module, "MOST_TEACHING", 2)
    normal = arrays["normal"] + [image[::-1] for image in arrays["normal"][:2]]
    training = {"augment": True, "epochs": 1, "batch_size": 44}
    detector = recap.fit(normal, settings=tiny_settings("recap", training=training))
    (data,) = sets
    assert data.abnormal.tolist() == [False] * 22 + [True] * 22
    assert data.has_mask.all()
    assert not data.masks[:22].any()
    assert data.masks[22:].flatten(1).any(dim=1).all()
    assert len({mask.numpy().tobytes() for mask in data.masks[22:]}) == 22
    assert detector.model.memory.rows.shape[2] == 5 * 25
    # A lesion belongs to the image that it was made on, also where that must leave itself out.
    assert data.origin.tolist() == 2 * ([0] * 11 + [2] * 11)
    assert data.copy.tolist() == 4 * list(range(11))


@pytest.mark.parametrize(("stage", "at"), [("encode", 4), ("train", 1), ("remember", 2)])
def test_killed_and_gone_on(
    stage, at, arrays, tiny_settings, bytes_of, tmp_path, monkeypatch, count_calls
):
    monkeypatch.setattr(features, "ENCODE_AT_ONCE", 1)
    monkeypatch.setattr(training_module, "SAVE_EVERY_S", -1.0)
    settings, work = tiny_settings("recap"), tmp_path / "work"
    whole = bytes_of(recap.fit(arrays["normal"], settings=settings))

    def kill(now, done, total, detail):
        if (now, done) == (stage, at):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recap.fit(arrays["normal"], settings=settings, work_dir=work, progress=kill)
    encoded = count_calls(ReCAP, "encode")
    resumed = recap.fit(arrays["normal"], settings=settings, work_dir=work)
    left = 6 - at if stage == "encode" else 0
    assert len(encoded) == left + 1 + 3  # one for the shape of the tokens, three to be remembered
    assert bytes_of(resumed) == whole
