import numpy as np
import pytest
import torch

import recap
from recap.training import display
from recap.training.display import FULL_AT, SHOWN_FROM


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
    monkeypatch.setattr(display, "_map_without_itself", lambda *a: torch.full((70, 70), value))
    low, high = recap.fit(arrays["normal"], settings=tiny_settings()).map_scale
    assert 0 <= low < high <= 1
