import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PillowImage
from scipy.ndimage import gaussian_filter

from recap.data.phantom import phantom
from recap.data.similar import fingerprint, grey_levels, hamming, hashes, structures, turn


@pytest.fixture(scope="module")
def scan():
    return phantom("Brain", np.random.default_rng(1), abnormal=True, size_px=96)[0]


@pytest.fixture(scope="module")
def thumbs():
    return np.random.default_rng(0).integers(0, 256, (3, 64, 64), np.uint8)


def test_same_picture_in_two_formats(scan, tmp_path):
    PillowImage.fromarray(scan).save(tmp_path / "a.png")
    PillowImage.fromarray(scan).save(tmp_path / "b.tif")
    PillowImage.fromarray(scan).convert("RGB").save(tmp_path / "c.bmp")
    PillowImage.fromarray(scan[:, ::-1]).save(tmp_path / "d.png")
    a, b, c, d = (fingerprint(path) for path in sorted(tmp_path.iterdir()))
    assert a.pixels == b.pixels == c.pixels != d.pixels
    assert len({a.sha256, b.sha256, c.sha256, d.sha256}) == 4
    assert np.array_equal(a.thumb, b.thumb)
    assert np.array_equal(a.thumb, c.thumb)


def test_pixels_in_another_shape_are_other_pixels(tmp_path):
    PillowImage.new("L", (4, 6), 9).save(tmp_path / "a.png")
    PillowImage.new("L", (6, 4), 9).save(tmp_path / "b.png")
    assert fingerprint(tmp_path / "a.png").pixels != fingerprint(tmp_path / "b.png").pixels


def test_a_file_that_cannot_be_read_gives_its_problem(tmp_path):
    (tmp_path / "a.png").write_bytes(b"not a picture")
    for name in ("a.png", "missing.png"):
        made = fingerprint(tmp_path / name)
        assert name in made.problem
        assert made.thumb is None
        assert made.pixels == ""


def test_structure_is_that_of_slow_filters(thumbs):
    for thumb, seen in zip(thumbs, structures(thumbs), strict=True):
        roots = thumb / 255
        band = gaussian_filter(roots, 0.7, mode="nearest") - gaussian_filter(
            roots, 2, mode="nearest"
        )
        even = band / (np.sqrt(gaussian_filter(band**2, 2, mode="nearest")) + 1 / 16)
        even -= even.mean()
        np.testing.assert_allclose(seen, even / np.linalg.norm(even), atol=1e-5)


def test_a_blank_picture_has_no_structure():
    assert not structures(np.full((1, 64, 64), 77, np.uint8)).any()


@pytest.mark.parametrize("way", range(8))
def test_structure_turns_with_the_picture(thumbs, way):
    turned = np.ascontiguousarray(turn(thumbs, way))
    np.testing.assert_allclose(structures(turned), turn(structures(thumbs), way), atol=1e-5)


def test_eight_different_turns(thumbs):
    assert len({turn(thumbs, way).tobytes() for way in range(8)}) == 8


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_hamming_counts_bits(a, b, c):
    first, second = np.array([[a, b]], np.uint64), np.array([[c, c], [a, b]], np.uint64)
    expected = [[(a ^ c).bit_count() + (b ^ c).bit_count(), 0]]
    assert hamming(first, second).tolist() == expected


def test_all_256_bits_may_differ():
    nothing = np.zeros((1, 4), np.uint64)
    assert hamming(nothing, ~nothing).tolist() == [[256]]


def test_hash_distance_estimates_the_angle():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((40, 64, 64)).astype(np.float32)
    for share in (0.0, 0.5, 0.9):
        b = share * a + np.sqrt(1 - share**2) * rng.standard_normal(a.shape).astype(np.float32)
        apart = np.diag(hamming(hashes(a), hashes(b))) / 256
        assert apart.mean() == pytest.approx(np.arccos(share) / np.pi, abs=0.015)


def test_grey_levels_leave_the_background_out():
    thumb = np.zeros((1, 64, 64), np.uint8)
    thumb[0, :8] = 255
    assert grey_levels(thumb).tolist() == [[255.0] * 49]
    assert not grey_levels(np.zeros((1, 64, 64), np.uint8)).any()


def test_grey_levels_are_quantiles():
    thumb = np.random.default_rng(0).integers(60, 256, (1, 64, 64), np.uint8)
    expected = np.quantile(thumb.astype(float) ** 2 / 255, np.linspace(0.02, 0.98, 49))
    np.testing.assert_allclose(grey_levels(thumb)[0], expected, atol=2)
