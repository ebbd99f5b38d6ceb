import numpy as np
import pytest

import recap
from recap.methods.recap import teach


def calibration_of(detector):
    return detector.card.calibration


def test_memories_leave_the_image_out(arrays, tiny_settings):
    """Reference: detectors fitted on the other images, one by one."""
    normal = arrays["normal"]
    scores, maxima = [], []
    for index, image in enumerate(normal):
        others = [array for i, array in enumerate(normal) if i != index]
        prediction = recap.fit(others, settings=tiny_settings()).score(image)
        scores.append(prediction.score)
        maxima.append(prediction.map.max())
    detector = recap.fit(normal, settings=tiny_settings())
    found = calibration_of(detector)
    assert found.source == "leave-one-out"
    assert found.normal_scores == pytest.approx(sorted(scores), rel=1e-4)
    assert found.map_level == pytest.approx(max(maxima), rel=1e-3)
    assert found.fpr == 1 / (len(normal) + 1)
    assert len(detector.card.domain.distances) == len(normal)


@pytest.mark.parametrize("memory", [{}, {"coreset": 30}])
@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_trained_heads_keep_their_prototypes(preset, memory, arrays, tiny_settings):
    """An image scores higher without itself in the memory, and by the prototypes just the same."""
    settings = tiny_settings(preset, memory=memory)
    detector = recap.fit(**arrays, settings=settings)
    predictions = [detector.score(image) for image in arrays["normal"]]
    found = calibration_of(detector).normal_scores
    assert len(found) == len(predictions)
    assert sum(found) > sum(p.score for p in predictions)
    weight = settings.memory.weight
    prototypes = sorted(p.score_prototype for p in predictions)
    # (1 − λ) s_p + λ s_m with 0 ≤ s_m ≤ 1
    assert min(found) >= (1 - weight) * prototypes[0] - 1e-5
    assert max(found) <= (1 - weight) * prototypes[-1] + weight
    known = len(arrays["normal"]) + len(arrays["abnormal"])
    assert detector.descriptors.shape[0] == known
    assert predictions[0].descriptor == pytest.approx(detector.descriptors[0], abs=1e-5)


def test_one_normal_image_has_no_estimate(arrays, tiny_settings):
    detector = recap.fit(arrays["normal"][:1], settings=tiny_settings())
    assert calibration_of(detector) is None
    assert detector.score(arrays["normal"][0]).decision is None
    assert detector.undecided() == "no decision: not calibrated; run recap calibrate"


def test_a_coreset_of_equal_images_has_no_estimate(arrays, tiny_settings):
    """No row is left when those of the image are taken out."""
    image = arrays["normal"][0]
    settings = tiny_settings(memory={"coreset": 3})
    alike = [image, np.dstack([image] * 3)]  # the same array twice is refused
    assert calibration_of(recap.fit(alike, settings=settings)) is None


def test_many_images_are_left_out_at_most_so_often(arrays, tiny_settings, monkeypatch):
    monkeypatch.setattr(teach, "LEFT_OUT_IMAGES", 2)
    rng = np.random.default_rng(0)
    images = [rng.random((40, 40)).astype(np.float32) for _ in range(5)]
    detector = recap.fit(images, settings=tiny_settings())
    assert len(calibration_of(detector).normal_scores) == 2
    assert len(detector.descriptors) == 5


def test_decisions_of_an_estimate_say_so(arrays, tiny_settings):
    detector = recap.fit(arrays["normal"], settings=tiny_settings())
    assert "estimate from the support set" in detector.score(arrays["abnormal"][0]).decision.rule
