import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import roc_auc_score
from slow_regions import literal_aupro, literal_pro, regions_of

from recap.errors import InputError
from recap.metrics import aupro, auroc, pro
from recap.metrics.regions import region_weights


def blobs(seed, n=12, size=24, levels=0):
    """Noisy maps that are higher in two or three rectangles; a third of the images is normal."""
    rng = np.random.default_rng(seed)
    masks = np.zeros((n, size, size), bool)
    for mask in masks[n // 3 :]:
        for _ in range(rng.integers(1, 4)):
            row, column = rng.integers(0, size - 6, 2)
            mask[row : row + rng.integers(1, 6), column : column + rng.integers(1, 6)] = True
    maps = 1 / (1 + np.exp(-rng.normal(size=masks.shape) * 2 - 2 * masks + 1))
    if levels:
        maps = np.round(maps * levels) / levels
    return maps.astype(np.float32), masks


@st.composite
def coarse_images(draw):
    shape = (draw(st.integers(1, 3)), draw(st.integers(2, 5)), draw(st.integers(2, 5)))
    masks = draw(hnp.arrays(np.bool_, shape))
    maps = draw(hnp.arrays(np.float32, shape, elements=st.integers(0, 6).map(lambda k: k / 8)))
    assume(masks.any() and not masks.all())
    return maps, masks


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("levels", [0, 20, 300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pro_is_the_literal_loop(seed, levels, dtype):
    maps, masks = blobs(seed, levels=levels)
    maps = maps.astype(dtype)
    assert pro(maps, masks) == pytest.approx(literal_pro(maps, masks), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(coarse_images())
def test_aupro_is_the_literal_loop(case):
    for limit in (0.3, 0.05, 1.0):
        assert aupro(*case, limit) == pytest.approx(literal_aupro(*case, limit), abs=1e-12)


@pytest.mark.parametrize("levels", [0, 20])
def test_aupro_is_the_partial_area_of_a_weighted_roc_curve(levels):
    """scikit-learn's, with each pixel weighing one over the area of its region."""
    maps, masks = blobs(9, n=30, size=40, levels=levels)
    weights = np.ones(masks.shape)
    for weight, mask in zip(weights, masks, strict=True):
        for pixels in regions_of(mask):
            weight[pixels] = 1 / len(pixels[0])
    standardised = roc_auc_score(
        masks.ravel(), maps.ravel(), sample_weight=weights.ravel(), max_fpr=0.3
    )
    least = 0.3**2 / 2
    area = least + (2 * standardised - 1) * (0.3 - least)
    assert aupro(maps, masks) == pytest.approx(area / 0.3, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(coarse_images(), st.randoms())
def test_neither_order_nor_a_monotone_transform_changes_aupro(case, random):
    maps, masks = case
    order = list(range(len(maps)))
    random.shuffle(order)
    expected = pytest.approx(aupro(maps, masks), abs=1e-12)
    assert aupro(maps[order], masks[order]) == expected
    assert aupro(np.arctan(maps.astype(float)) * 9 - 2, masks) == expected


def test_pro_is_free_of_scale_and_order():
    maps, masks = blobs(7)
    expected = pytest.approx(pro(maps, masks), abs=1e-12)
    assert pro(maps[::-1], masks[::-1]) == expected
    assert pro(maps * 4, masks) == expected


@settings(max_examples=40, deadline=None)
@given(coarse_images())
def test_one_region_over_the_whole_range_is_the_auroc(case):
    maps, masks = case[0][:1], np.zeros_like(case[1][:1])
    masks[0, 0, :2] = True
    assume(masks.size > 2)
    assert aupro(maps, masks, 1.0) == pytest.approx(auroc(maps, masks), abs=1e-12)


def test_diagonal_neighbours_are_one_region():
    weights, count = region_weights(np.eye(3, dtype=bool))
    assert count == 1
    assert weights.tolist() == [1 / 3] * 3
    mask = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 1]], bool)
    weights, count = region_weights(mask)
    assert count == 3
    assert weights.tolist() == [0.5, 1, 0.5, 1]


def test_small_regions_count_in_full():
    """By hand: the single pixel is found first, the four others never below the limit."""
    mask = np.zeros((10, 10), bool)
    mask[0, 0] = mask[5, 5:9] = True
    map_ = np.full((10, 10), 0.5)
    map_[0, 0], map_[5, 5:9] = 1.0, 0.0
    assert aupro(map_, mask) == pytest.approx(0.5)


def test_perfect_constant_and_inverted_maps():
    _, masks = blobs(1)
    assert aupro(masks.astype(float), masks) == pytest.approx(1.0, abs=1e-12)
    # A constant map has the straight line from (0, 0) to (1, 1).
    assert aupro(np.full(masks.shape, 0.5), masks) == pytest.approx(0.15)
    assert aupro(-masks.astype(float), masks) == 0.0


def test_images_may_differ_in_size():
    """Cutting an image in two between its regions changes neither regions nor pixels."""
    maps, masks = blobs(3, n=6)
    masks[:, 9] = False
    maps_cut = [part for map_ in maps for part in (map_[:9], map_[9:])]
    masks_cut = [part for mask in masks for part in (mask[:9], mask[9:])]
    for metric in (pro, aupro):
        expected = pytest.approx(metric(maps, masks), abs=1e-12)
        assert metric(maps_cut, masks_cut) == expected
    assert aupro(maps[5], masks[5]) == aupro(maps[5:6], masks[5:6])


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_pro_of_too_few_values_is_refused(value):
    maps, masks = blobs(1)
    with pytest.raises(
        InputError, match=r"fewer than two false-positive rates below 0\.3\. Use aupro"
    ):
        pro(np.full_like(maps, value), masks)
    with pytest.raises(InputError, match="fewer than two"):
        pro(masks.astype(np.float32), masks)


@pytest.mark.parametrize("metric", [pro, aupro])
@pytest.mark.parametrize(
    ("maps", "masks", "message"),
    [
        (np.zeros((2, 3, 3)), np.zeros((1, 3, 3)), "2 maps but 1 masks"),
        (
            np.zeros((1, 3, 3)),
            np.zeros((1, 3, 4)),
            r"Map 0 has shape \(3, 3\) and its mask \(3, 4\)",
        ),
        (np.zeros((1, 1, 3, 3)), np.zeros((1, 1, 3, 3)), r"must be \(height, width\)"),
        (np.full((1, 3, 3), np.nan), np.eye(3)[None], "9 of 9 pixels of map 0 are NaN"),
        (np.zeros((1, 3, 3)), np.zeros((1, 3, 3)), "No pixel has label 1"),
        (np.zeros((1, 3, 3)), np.ones((1, 3, 3)), "No pixel has label 0"),
        (np.zeros((1, 3, 3)), 255 * np.eye(3)[None], "3 labels are neither 0 nor 1"),
        ([], [], "No pixel has label 0 or label 1"),
    ],
)
def test_what_cannot_be_used_is_refused(metric, maps, masks, message):
    with pytest.raises(InputError, match=message):
        metric(maps, masks)


@pytest.mark.parametrize("limit", [0, -0.1, 1.5, float("nan")])
def test_an_impossible_limit_is_refused(limit):
    with pytest.raises(InputError, match="FPR limit"):
        aupro(*blobs(0), limit)
