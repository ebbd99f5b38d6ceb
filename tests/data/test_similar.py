import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from recap.data import similar
from recap.data.similar import Yardstick, find_matches, measure, turn


def textures(count, seed=0):
    """Unrelated pictures with structure at all scales, as thumbnails."""
    rng = np.random.default_rng(seed)
    pictures = [
        sum(gaussian_filter(rng.standard_normal((64, 64)), s) * s for s in (1, 2, 4))
        for _ in range(count)
    ]
    return np.stack([np.clip(128 + 60 * p, 0, 255) for p in pictures]).astype(np.uint8)


def noisy(thumb, amount, seed=0):
    rng = np.random.default_rng(seed)
    soft = gaussian_filter(rng.standard_normal(thumb.shape), 1)
    return np.clip(thumb + amount * soft, 0, 255).astype(np.uint8)


def test_unrelated_pictures_do_not_match():
    assert find_matches(textures(20, 1), textures(30, 2)) == []


@pytest.mark.parametrize("way", range(8))
def test_a_copy_is_found_in_every_turn(way):
    pool, test = textures(20, 1), textures(30, 2)
    pool[7] = turn(test[[11]], way)[0]
    (match,) = find_matches(pool, test)
    assert (match.first, match.second, match.copy) == (7, 11, True)
    assert match.score == pytest.approx(1, abs=0.01)
    # Turning the pool's picture by `way` brings back the test's picture.
    assert np.array_equal(turn(pool[[7]], match.way)[0], test[11])


def test_a_changed_picture_is_a_neighbour_and_then_nothing():
    pool, test = textures(20, 1), textures(30, 2)
    found = {}
    for amount in (0, 40, 60, 300):
        pool[7] = noisy(test[11], amount)
        found[amount] = [match.copy for match in find_matches(pool, test)]
    assert found[0] == [True]
    assert found[300] == []
    assert [False] in found.values()


def test_other_grey_values_make_no_neighbour():
    pool, test = textures(20, 1), textures(30, 2)
    pool[7] = noisy(test[11], 50)
    assert [match.copy for match in find_matches(pool, test)] == [False]
    pool[7] = pool[7] // 2
    assert find_matches(pool, test) == []


def test_what_all_pictures_share_does_not_count():
    pattern = textures(1, 9)[0].astype(int)
    pool, test = (
        np.clip(0.7 * pattern + 0.3 * textures(n, n), 0, 255).astype(np.uint8) for n in (20, 30)
    )
    assert find_matches(pool, test) == []
    pool[3] = test[5]
    assert [(m.first, m.second) for m in find_matches(pool, test)] == [(3, 5)]


def test_pictures_of_one_pattern_allow_copies_only():
    rng, parts = np.random.default_rng(0), textures(2, 9).astype(int)
    weights = rng.random((50, 1, 1))
    blends = (weights * parts[0] + (1 - weights) * parts[1]).astype(np.uint8)
    assert measure(blends[:20], blends[20:]).neighbour == np.inf
    assert measure(textures(20, 1), textures(30, 2)).neighbour == similar.NEIGHBOUR


def test_few_pictures_allow_copies_only():
    assert measure(textures(3, 1), textures(4, 2)).copy == similar.COPY_AMONG_ALIKE


def test_the_own_part_is_what_is_left_of_a_picture():
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((64, 64)).astype(np.float32)
    own = rng.standard_normal((2, 64, 64)).astype(np.float32)
    seen = Yardstick(shared, 0.9, 0.8).own(own + shared)
    expected = own / np.linalg.norm(own.reshape(2, -1), axis=1)[:, None, None]
    np.testing.assert_allclose(seen, expected, atol=1e-5)


def test_blank_pictures_are_no_copies_of_each_other():
    pool, test = textures(20, 1), textures(30, 2)
    pool[3], test[4] = 0, 200
    assert find_matches(pool, test) == []


def test_more_pictures_than_fit_a_tile(monkeypatch):
    pool, test = textures(9, 1), textures(40, 2)
    pool[8], pool[0] = test[39], turn(test[[0]], 2)[0]
    expected = find_matches(pool, test)
    for name, size in (("_TILE", 5), ("_BATCH", 7), ("_BLOCK", 2)):
        monkeypatch.setattr(similar, name, size)
    again = find_matches(pool, test)
    assert [(m.first, m.second, m.way) for m in again] == [(0, 0, 2), (8, 39, 0)]
    assert [m.score for m in again] == pytest.approx([m.score for m in expected], abs=1e-5)


def test_nothing_to_compare():
    empty = np.empty((0, 64, 64), np.uint8)
    assert find_matches(empty, textures(2)) == []
    assert find_matches(textures(2), empty) == []


def test_progress_goes_to_the_end():
    steps = []
    find_matches(textures(2, 1), textures(70, 2), lambda *step: steps.append(step[1:3]))
    assert steps == [(0, 70), (64, 70), (70, 70)]
