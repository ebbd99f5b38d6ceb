import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.io import image_from_array
from recap.scoring.conformal import threshold_at
from recap.scoring.domain_guard import (
    BEYOND,
    distances_to_others,
    domain_limit,
    domain_range,
    mean_descriptor,
    nearest,
)


def unit_rows(n, width=8, seed=0, spread=0.3):
    rows = 1 + spread * np.random.default_rng(seed).standard_normal((n, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("n", [2, 5, 1030])
def test_distances_to_the_nearest_other(n):
    rows = unit_rows(n)
    found = distances_to_others(rows)
    for index in {0, 1, n - 1, n // 2}:
        others = [float(1 - rows[index] @ row) for i, row in enumerate(rows) if i != index]
        assert found[index] == pytest.approx(max(0, min(others)), abs=1e-6)


def test_few_images_take_their_largest_distance():
    known, rows = domain_range(list(unit_rows(10)))
    assert np.array_equal(rows, unit_rows(10))
    assert known.distances == sorted(distances_to_others(rows).tolist())
    assert known.limit == pytest.approx(BEYOND * known.distances[-1])
    assert known.holds(known.limit)
    assert not known.holds(np.nextafter(known.limit, 1))


@given(st.integers(99, 400), st.integers(0, 5))
def test_many_images_pass_over_their_farthest_hundredth(n, seed):
    distances = np.sort(np.random.default_rng(seed).random(n))
    assert domain_limit(distances) == BEYOND * threshold_at(distances.tolist(), 0.01)
    distances[-1] = 1e6  # one outlier in a hundred widens nothing once there are 200
    if n >= 199:
        assert domain_limit(distances) < 2


def test_equal_images_still_hold_themselves():
    rows = np.repeat(unit_rows(1), 3, axis=0)
    known, _ = domain_range(list(rows))
    assert known.holds(nearest(rows[0], rows))
    assert known.limit > 0


def test_one_image_or_none_has_no_range():
    assert domain_range([unit_rows(1)[0]]) == (None, None)
    assert domain_range([]) == (None, None)
    assert domain_range([None, None, None]) == (None, None)
    assert domain_range([*unit_rows(3), None]) == (None, None)


def test_p_values_and_words():
    known, rows = domain_range(list(unit_rows(10)))
    assert known.p_value(2.0) == 1 / 11
    assert known.p_value(0.0) == 1.0
    assert "unlike all 10 known images (distance 0.9" in known.warning(0.9)
    far = -rows[0]
    assert not known.holds(nearest(far, rows))
    assert f"farther than {known.limit:.3g} from all 10" in known.rule


def test_the_descriptor_of_a_case_is_the_mean_of_its_images():
    rows = unit_rows(4)
    mean = rows.mean(axis=0)
    assert mean_descriptor(list(rows)) == pytest.approx(mean / np.linalg.norm(mean), abs=1e-6)
    assert np.array_equal(mean_descriptor([rows[0]]), rows[0])
    assert mean_descriptor([rows[0], None]) is None
    assert mean_descriptor([]) is None


@pytest.mark.parametrize("kind", ["few-shot", "write-back", "normal-only", "zero-shot"])
def test_descriptors_are_the_mean_patches_of_the_frozen_encoder(kind, detectors, pictures):
    detector = detectors[kind]
    encoder = detector.model.encoder
    for picture in pictures[:2]:
        pixels = detector.preprocess(image_from_array(picture))[None]
        taps = encoder.taps(pixels)[0].detach().numpy()  # (L, R, width)
        layers = taps[:1] if kind == "write-back" else taps
        means = [layer.mean(axis=0) for layer in layers]
        expected = np.concatenate([mean / np.linalg.norm(mean) for mean in means])
        expected /= np.linalg.norm(expected)
        assert detector.score(picture).descriptor == pytest.approx(expected, abs=1e-4)


def test_what_is_unlike_the_support_is_flagged(few_shot, domains):
    own = domains[0].test()[0].path
    assert few_shot.score(own).decision.in_domain
    noise = np.random.default_rng(0).random((70, 70, 3)).astype(np.float32)
    decision = few_shot.score(noise).decision
    assert not decision.in_domain
    assert decision.rule.startswith("OUT OF DOMAIN")
