"""Fitting on normal images alone, with adapters that learn from made-up lesions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from recap.training.head import originals

import recap
from recap.methods.recap.head import ReCAP
from recap.methods.registry import resolve_settings
from recap.scoring.explain import explain
from recap.training import epochs, head, normal_only, prefix_store


@pytest.fixture
def settings(tiny_settings):
    return tiny_settings("recap")


def test_a_memory_of_adapted_tokens_and_nothing_else(arrays, settings):
    detector = recap.fit(arrays["normal"], settings=settings)
    card, model = detector.card, detector.model
    assert (card.mode, card.taught_by) == ("normal-only", "masks")
    assert "lesions made up on those images" in card.statement
    assert [record["label"] for record in card.support] == ["normal"] * 3
    assert card.losses["segmentation"] > 0
    assert card.losses["detection"] == 0
    assert (model.has_adapters, model.has_prototypes) == (True, False)
    assert model.memory.shape == (4, 1, 75, 128)
    prediction = detector.score(arrays["normal"][1])
    assert prediction.score_prototype is None
    assert prediction.drift is None
    assert prediction.score == prediction.score_memory < 1e-5
    assert detector.score(arrays["abnormal"][0]).score > prediction.score + 1e-3


def test_the_score_is_the_distance_of_adapted_tokens(arrays, settings):
    """Reference: each patch through the adapter, against every remembered one."""
    detector = recap.fit(arrays["normal"], settings=settings)
    model, weights = detector.model, detector.model.theta_seg.softmax(dim=0)
    with torch.no_grad():
        pixels = [detector.preprocess(recap.Image(a, "a"))[None] for a in arrays["normal"]]
        taps = torch.cat([model.encoder.taps(p) for p in pixels])
        ill = recap.Image(arrays["abnormal"][1], "a")
        asked = model.encoder.taps(detector.preprocess(ill)[None])
        expected = 0.0
        for layer in range(4):
            down = model.adapter(layer, 0).down.weight

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
    assert not loaded.model.has_prototypes
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
    assert not plain.model.has_adapters
    asked = tiny_settings(preset, training={"made_up_lesions": True})
    learned = recap.fit(arrays["normal"], settings=asked)
    assert learned.model.has_adapters
    assert learned.model.memory.shape == (4, 2, 75, 32)  # both branches
    assert learned.score(arrays["abnormal"][0]).score > learned.score(arrays["normal"][0]).score


def test_copies_have_lesions_each_and_some_images_teach(arrays, tiny_settings, monkeypatch):
    """Of five images two teach; all five are remembered."""
    sets, original = [], head.train

    def train(objective, data, *rest):
        sets.append(data)
        return original(objective, data, *rest)

    monkeypatch.setattr(head, "train", train)
    monkeypatch.setattr(normal_only, "MOST_TEACHING", 2)
    normal = arrays["normal"] + [image[::-1] for image in arrays["normal"][:2]]
    training = {"augment": True, "epochs": 1, "batch_size": 44}
    detector = recap.fit(normal, settings=tiny_settings("recap", training=training))
    (data,) = sets
    assert data.abnormal.tolist() == [False] * 22 + [True] * 22
    assert data.has_mask.all()
    assert not data.masks[:22].any()
    assert data.masks[22:].flatten(1).any(dim=1).all()
    assert len({mask.numpy().tobytes() for mask in data.masks[22:]}) == 22
    assert detector.model.memory.shape[2] == 5 * 25
    # A lesion belongs to the image that it was made on, also where that must leave itself out.
    assert data.origin.tolist() == 2 * ([0] * 11 + [1] * 11)
    assert [originals(data, abnormal) for abnormal in (False, True)] == [[0, 11], [22, 33]]


def test_one_image_and_its_lesion_are_two():
    settings = resolve_settings("recap")
    masks = torch.zeros(22, 4, 4, dtype=torch.bool)
    data = head.training_set(None, masks, [False, True], [True, True], settings)
    data = replace(data, origin=data.origin % 1)
    assert [originals(data, abnormal) for abnormal in (False, True)] == [[0], [11]]


@pytest.mark.parametrize(("stage", "at"), [("encode", 4), ("train", 1), ("remember", 2)])
def test_killed_and_gone_on(
    stage, at, arrays, tiny_settings, bytes_of, tmp_path, monkeypatch, count_calls
):
    monkeypatch.setattr(prefix_store, "ENCODE_AT_ONCE", 1)
    monkeypatch.setattr(epochs, "SAVE_EVERY_S", -1.0)
    settings, work = tiny_settings("recap"), tmp_path / "work"
    whole = bytes_of(recap.fit(arrays["normal"], settings=settings))

    def kill(now, done, total, detail):
        if (now, done) == (stage, at):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recap.fit(arrays["normal"], settings=settings, work_dir=work, progress=kill)
    encoded = count_calls(ReCAP, "prefix")
    resumed = recap.fit(arrays["normal"], settings=settings, work_dir=work)
    left = 6 - at if stage == "encode" else 0
    assert len(encoded) == left + 1 + 3  # one for the shape of the tokens, three to be remembered
    assert bytes_of(resumed) == whole


@pytest.mark.parametrize("preset", ["recap", "fast"])
def test_copies_are_remembered_where_that_is_asked_for(preset, arrays, tiny_settings):
    memory = {"augmented": True, "coreset": None}
    settings = tiny_settings(preset, memory=memory, training={"augment": True, "epochs": 1})
    detector = recap.fit(arrays["normal"], settings=settings)
    assert detector.model.memory.shape[2] == 3 * 11 * 25
    mirrored = np.ascontiguousarray(arrays["normal"][0][:, ::-1])
    plain = tiny_settings(preset, memory={"coreset": None}, training={"augment": True, "epochs": 1})
    assert (
        detector.score(mirrored).score
        < recap.fit(arrays["normal"], settings=plain).score(mirrored).score
    )
    # Each is compared with the copies of others alone.
    assert min(detector.card.calibration.normal_scores) > 1e-3
