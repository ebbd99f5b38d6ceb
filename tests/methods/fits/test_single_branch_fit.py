"""Fitting with preset `recap`: one branch, taught by masks or by labels."""

import numpy as np
import pytest
import torch

import recap
from recap.methods.recap.sources import STEEPNESS, project, solve_labels


def fit(arrays, settings, masks):
    return recap.fit(arrays["normal"], arrays["abnormal"], masks, settings=settings)


def test_masks_teach_where_there_are_some(arrays, tiny_settings):
    for masks in (arrays["masks"], [arrays["masks"][0], None]):
        detector = fit(arrays, tiny_settings("recap"), masks)
        assert detector.card.variant == detector.model.regime == "masks"
        assert "lesion masks" in detector.card.statement
        assert detector.card.losses["segmentation"] > 0
        assert (detector.card.losses["detection"] > 0) == (masks[1] is None)
        assert detector.model.memory.normal is None
        assert detector.model.find_source("appearance") is None
        assert detector.model.memory.rows.shape == (4, 1, 75, 128)


def test_labels_teach_where_there_are_no_masks(arrays, tiny_settings):
    detector = fit(arrays, tiny_settings("recap", training={"made_up_lesions": False}), None)
    assert detector.card.variant == detector.model.regime == "labels_alone"
    assert "No mask was seen" in detector.card.statement
    assert detector.card.losses["segmentation"] == 0
    assert detector.card.losses["detection"] > 0
    prediction = detector.score(arrays["abnormal"][0])
    assert prediction.map.shape == (70, 70)


@pytest.mark.parametrize("with_masks", [True, False])
def test_saved_and_loaded_scores_are_the_same(with_masks, arrays, tiny_settings, tmp_path):
    detector = fit(arrays, tiny_settings("recap"), arrays["masks"] if with_masks else None)
    detector.save(tmp_path / "a.recap")
    loaded = recap.load(tmp_path / "a.recap")
    assert loaded.model.regime == detector.model.regime
    for image in arrays["normal"] + arrays["abnormal"]:
        one, two = detector.score(image), loaded.score(image)
        assert one.score == two.score
        assert (one.map == two.map).all()


def test_distances_of_normal_images_to_each_other(arrays, tiny_settings):
    """Reference: every normal image against the tokens of the other two, patch by patch."""
    detector = fit(arrays, tiny_settings("recap"), None)
    model = detector.model
    with torch.no_grad():
        pixels = [detector.preprocess(recap.Image(a, "a"))[None] for a in arrays["normal"]]
        tokens = [model.tokens(model.features(model.encode(p)))[-1] for p in pixels]
    for layer in range(4):
        found = []
        for index, image in enumerate(tokens):
            others = [t[layer][0] for i, t in enumerate(tokens) if i != index]
            for patch in image[layer][0]:
                cosines = [
                    torch.cosine_similarity(patch, row, dim=0) for other in others for row in other
                ]
                found.append(1 - max(cosines))
        expected = torch.stack(found)
        mean, deviation = model.memory.normal[:, layer]
        assert float(mean) == pytest.approx(float(expected.mean()), rel=1e-4)
        assert float(deviation) == pytest.approx(float(expected.std()), rel=1e-3)


def test_the_estimate_leaves_each_image_out_as_a_whole_too(arrays, tiny_settings):
    """With the image as a whole alone, the estimate is the regression on the others."""
    settings = tiny_settings("recap", model={"appearance_weight": 0.999999})
    detector = fit(arrays, settings, None)
    model = detector.model
    images = arrays["normal"] + arrays["abnormal"]
    labels = torch.tensor([False] * 3 + [True] * 2)
    with torch.no_grad():
        pixels = [detector.preprocess(recap.Image(a, "a"))[None] for a in images]
        vectors = torch.cat([model.features(model.encode(p)).appearance for p in pixels])
    expected = []
    for index in range(3):
        others = [i for i in range(5) if i != index]
        solved = solve_labels(vectors[others], labels[others])
        expected.append(float(torch.sigmoid(STEEPNESS * project(vectors[[index]], solved))))
    found = detector.card.calibration.normal_scores
    assert found == pytest.approx(sorted(expected), abs=1e-4)
    itself = [detector.score(a).score for a in arrays["normal"]]
    assert sum(found) > sum(itself)


def test_one_normal_image_has_nothing_to_be_compared_with(arrays, tiny_settings):
    detector = recap.fit(arrays["normal"][:1], arrays["abnormal"], settings=tiny_settings("recap"))
    assert detector.model.memory.normal is None
    assert detector.model.find_source("appearance").direction is not None
    assert 0 < detector.score(arrays["abnormal"][0]).score < 1


def test_equal_normal_images_are_no_division_by_nothing(arrays, tiny_settings):
    image = arrays["normal"][0]
    normal = [image, np.dstack([image] * 3)]  # the same array twice is refused
    detector = recap.fit(normal, arrays["abnormal"], settings=tiny_settings("recap"))
    assert detector.model.memory.normal is None
    assert 0 <= detector.score(normal[0]).score < 1
