import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.io import image_from_array
from recap.scoring.conformal import threshold_at
from recap.scoring.domain_guard import (
    BEYOND,
    MOST_KEPT,
    check_domain,
    distances_to_others,
    domain_range,
)


def unit_rows(n, width=8, seed=0, spread=0.3):
    rows = 1 + spread * np.random.default_rng(seed).standard_normal((n, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def as_cases(rows):
    return [row[None] for row in rows]


@pytest.mark.parametrize("n", [2, 5, 1030])
def test_distances_to_the_nearest_other(n):
    rows = unit_rows(n)
    found = distances_to_others(rows, np.arange(n))
    for index in {0, 1, n - 1, n // 2}:
        others = [float(1 - rows[index] @ row) for i, row in enumerate(rows) if i != index]
        assert found[index] == pytest.approx(max(0, min(others)), abs=1e-6)


def test_images_of_one_case_are_no_others():
    rows, owner = unit_rows(12), np.repeat([0, 1, 2], [5, 4, 3])
    found = distances_to_others(rows, owner)
    for index, row in enumerate(rows):
        others = [float(1 - row @ rows[i]) for i in range(12) if owner[i] != owner[index]]
        assert found[index] == pytest.approx(min(others), abs=1e-6)


def test_few_images_take_their_largest_distance():
    known, rows = domain_range(as_cases(unit_rows(10)))
    assert np.array_equal(rows, unit_rows(10))
    assert known.distances == sorted(distances_to_others(rows, np.arange(10)).tolist())
    assert known.limit == pytest.approx(BEYOND * known.distances[-1])
    assert known.check(known.limit).in_domain
    assert not known.check(np.nextafter(known.limit, 1)).in_domain


@given(st.integers(99, 300), st.integers(0, 5))
def test_many_images_pass_over_their_farthest_hundredth(n, seed):
    rows = unit_rows(n, seed=seed)
    known, _ = domain_range(as_cases(rows))
    assert known.limit == BEYOND * threshold_at(known.distances, 0.01)
    if n >= 199:  # one outlier in a hundred widens nothing
        outlier, _ = domain_range(as_cases([*rows, -rows[0]]))
        assert outlier.distances[-1] > 1 > outlier.limit


def test_equal_images_still_hold_themselves():
    rows = np.repeat(unit_rows(1), 3, axis=0)
    known, kept = domain_range(as_cases(rows))
    assert check_domain(known, kept, rows[:1], "image").in_domain
    assert known.limit > 0


def test_one_case_or_none_has_no_range():
    rows = unit_rows(3)
    assert domain_range([rows[:1]]) == (None, None)
    assert domain_range([rows], "volume") == (None, None)  # its slices are known to each other
    assert domain_range([]) == (None, None)
    assert domain_range([None, None, None]) == (None, None)
    assert domain_range([*as_cases(rows), None]) == (None, None)


def test_p_values_and_words():
    known, rows = domain_range(as_cases(unit_rows(10)))
    assert known.check(2.0).p_value == 1 / 11
    assert known.check(0.0).p_value == 1.0
    assert known.check(0.0).warning == ""
    far = check_domain(known, rows, -rows[:1], "image")
    assert not far.in_domain
    assert "unlike all 10 known images" in far.warning
    assert f"{known.limit:.3g}" in known.rule


def mixed(near, far, rows):
    """A case of so many images like the known ones, and so many unlike all of them."""
    return np.concatenate([rows[:near], -rows[:far]])


@pytest.mark.parametrize("kind", ["volume", "frames", "slide"])
def test_a_case_is_as_far_as_its_nearer_half(kind):
    rows = unit_rows(20)
    known, kept = domain_range(as_cases(rows))
    assert check_domain(known, kept, mixed(10, 10, rows), kind).in_domain
    assert check_domain(known, kept, mixed(7, 1, rows), kind).in_domain
    foreign = check_domain(known, kept, mixed(9, 10, rows), kind)
    assert not foreign.in_domain
    assert foreign.p_value is None  # single images are known, and their distances are no measure
    assert foreign.distance > 1


@given(st.integers(1, 30), st.integers(0, 9))
def test_the_order_of_images_changes_nothing(n, seed):
    rows = unit_rows(n + 8, seed=seed)
    known, kept = domain_range(as_cases(rows[n:]))
    turned = np.random.default_rng(seed).permutation(n)
    assert check_domain(known, kept, rows[:n], "volume") == check_domain(
        known, kept, rows[:n][turned], "volume"
    )


def test_known_volumes_are_compared_as_volumes():
    """Each is as far as half of its slices are from the slices of the others."""
    rows = unit_rows(30)
    volumes = [rows[:10], rows[10:15], rows[15:]]
    known, kept = domain_range(volumes, "volume")
    assert np.array_equal(kept, rows)
    expected = []
    for index, volume in enumerate(volumes):
        others = np.concatenate([other for i, other in enumerate(volumes) if i != index])
        nearest = sorted((1 - volume @ others.T).min(axis=1))
        expected.append(nearest[-(-len(volume) // 2) - 1])
    assert known.distances == pytest.approx(sorted(expected), abs=1e-6)
    assert known.case_limit == pytest.approx(BEYOND * max(expected), abs=1e-6)
    assert known.limit > known.case_limit  # a single image may be farther than many are
    assert known.check(known.distances[-1], "volume").p_value == 2 / 4
    assert known.check(0.0, "image").p_value is None


def test_long_volumes_are_kept_in_part():
    volumes = [unit_rows(200, seed=1), unit_rows(40, seed=2), unit_rows(3, seed=3)]
    _, kept = domain_range(volumes, "volume")
    assert len(kept) == 2 * MOST_KEPT + 3
    where = [int(np.flatnonzero((volumes[0] == row).all(axis=1))[0]) for row in kept[:MOST_KEPT]]
    assert (np.diff(where) >= 6).all()
    assert (np.diff(where) <= 7).all()


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
