import numpy as np
import pytest
import torch

import recap
from recap.methods.base import Output, weigh
from recap.methods.recap import teach
from recap.methods.recap.teach import FULL_AT, SHOWN_FROM
from recap.scoring.detector import as_image


def test_the_scale_is_what_normal_images_reach_without_themselves(arrays, tiny_settings):
    """Reference: detectors fitted on the other two images, one by one."""
    normal = arrays["normal"]
    maps = []
    for index, image in enumerate(normal):
        others = [array for i, array in enumerate(normal) if i != index]
        maps.append(recap.fit(others, settings=tiny_settings()).score(image).map)
    low, high = recap.fit(normal, settings=tiny_settings()).map_scale
    assert low == pytest.approx(np.quantile(np.stack(maps), SHOWN_FROM), rel=1e-4)
    assert high == pytest.approx(max(FULL_AT * low, 1e-3), rel=1e-6)


def distances_by_hand(model, tokens, image):
    """Distances (L, R) of the branch for maps to the rows that come from other images, one by
    one."""
    memory, patches, found = model.memory, tokens[0][0].shape[1], []
    for layer, own in enumerate(tokens[0]):
        nearest = torch.full((patches,), torch.inf)
        for number, row in enumerate(memory.rows[layer, 0]):
            if memory.origin is not None:
                number = int(memory.origin[layer, 0, number])
            if number // patches == image:
                continue
            nearest = torch.minimum(nearest, 1 - torch.cosine_similarity(own[0], row[None]))
        found.append(nearest)
    return torch.stack(found)


@pytest.mark.parametrize("given", [("normal",), ("normal", "abnormal", "masks")])
@pytest.mark.parametrize("memory", [{}, {"coreset": 20}])
def test_the_scale_is_of_distances_to_what_is_remembered(memory, given, arrays, tiny_settings):
    """Reference: a loop over the rows of the memory."""
    settings = tiny_settings(memory=memory, training={"epochs": 1, "batch_size": 55})
    detector = recap.fit(**{key: arrays[key] for key in given}, settings=settings)
    model, maps = detector.model, []
    for index, array in enumerate(arrays["normal"]):
        pixels = detector.preprocess(as_image(array, settings.reading))[None]
        with torch.no_grad():
            tokens = model.tokens(model.features(model.encode(pixels)))
            halves = (distances_by_hand(model, tokens, index) / 2).clamp(0, 1)
            drawn = model.drawing.draw(weigh(halves[:, None], model.maps.weights))
            parts = {part.source: part for part in model.evidence(pixels)}
            if "prototype" in parts:
                prototype = parts["prototype"]
                drawn = 0.5 * drawn + 0.5 * weigh(prototype.map, prototype.map_weights)
            maps.append(drawn)
    expected = np.quantile(torch.cat(maps).numpy(), SHOWN_FROM)
    assert detector.card.map_scale[0] == pytest.approx(expected, rel=1e-4)


def test_a_coreset_of_equal_images_leaves_a_scale(arrays, tiny_settings):
    """No row is left when those of the image are taken out."""
    image = arrays["normal"][0]
    alike = [image, np.dstack([image] * 3)]  # the same array twice is refused
    low, high = recap.fit(alike, settings=tiny_settings(memory={"coreset": 3})).map_scale
    assert 0 <= low < high <= 1


def test_one_image_alone_has_a_fixed_scale(arrays, tiny_settings):
    alone = recap.fit(arrays["normal"][:1], settings=tiny_settings())
    assert alone.map_scale == (0.0, 0.25)
    trained = recap.fit(arrays["normal"][:1], arrays["abnormal"], settings=tiny_settings())
    assert trained.map_scale == (0.0, 1.0)


def test_the_same_images_twice_leave_a_scale_that_can_be_drawn(arrays, tiny_settings):
    image = arrays["normal"][0]
    alike = [image, np.dstack([image] * 3)]  # the same array twice is refused
    low, high = recap.fit(alike, settings=tiny_settings()).map_scale
    assert 0 <= low < high <= 1


@pytest.mark.parametrize("value", [0.0, 0.3, 0.7, 1.0])
def test_any_level_of_normal_maps_leaves_a_scale(value, arrays, tiny_settings, monkeypatch):
    said = Output(torch.zeros(1), torch.full((1, 70, 70), value))
    monkeypatch.setattr(teach, "judge_left_out", lambda *a: dict.fromkeys(range(3), said))
    low, high = recap.fit(arrays["normal"], settings=tiny_settings()).card.map_scale
    assert 0 <= low < high <= 1
