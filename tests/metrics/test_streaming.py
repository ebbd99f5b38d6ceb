import pickle

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import average_precision_score, roc_auc_score

from recap.errors import InputError, SettingsError
from recap.metrics import (
    ImageMetrics,
    PixelMetrics,
    aupro,
    auroc,
    average_precision,
    expected_calibration_error,
    f1_max,
    fpr_at_tpr,
    pro,
    sensitivity_at_specificity,
    tally,
)


def exact(maps, masks):
    values = np.asarray(maps, np.float32)
    try:
        family = pro(values, masks)
    except InputError:
        family = None
    return {
        "auroc": auroc(values, masks),
        "f1_max": f1_max(values, masks),
        "ap": average_precision(values, masks),
        "pro": family,
        "aupro_0.3": aupro(values, masks),
    }


def streamed(maps, masks, **settings):
    metrics = PixelMetrics(**settings)
    for map_, mask in zip(maps, masks, strict=True):
        metrics.update(map_, mask)
    return metrics


def same(result, expected, tolerance=1e-12, skip=()):
    assert list(result) == list(expected)
    for name, value in expected.items():
        if name not in skip:
            where = f"{name}: {result[name]} instead of {value}"
            assert (value is None) == (result[name] is None), where
            assert value is None or abs(result[name] - value) <= tolerance, where


def lesions(rng, n, size, prevalence_px=5):
    masks = np.zeros((n, size, size), bool)
    for mask in masks[n // 3 :]:
        row, column = rng.integers(0, size - prevalence_px, 2)
        mask[row : row + prevalence_px, column : column + 3] = True
        mask[-1, -1] = True
    return masks


def neighbouring_floats(rng, masks):
    """Thousands of values within the 1e-3 above 0.5, each a few float32 steps apart."""
    steps = rng.integers(0, 16_000, masks.shape) + 400 * masks
    return (np.float32(0.5).view(np.uint32) + steps.astype(np.uint32)).view(np.float32)


HOSTILE = {
    "logits": lambda rng, masks: rng.normal(size=masks.shape) + masks,
    "saturated": lambda rng, masks: (
        1 / (1 + np.exp(-rng.normal(-20, 30, masks.shape) - 30 * masks))
    ),
    "near 1": lambda rng, masks: 1 - 10.0 ** rng.uniform(-9, -5, masks.shape) * (1 - 0.7 * masks),
    "tiny": lambda rng, masks: 10.0 ** (rng.uniform(-12, -6, masks.shape) + masks),
    "denormal": lambda rng, masks: 10.0 ** (rng.uniform(-44, -38, masks.shape) + masks),
    "negative and large": lambda rng, masks: 1e30 * (rng.normal(size=masks.shape) + masks),
    "two values": lambda rng, masks: (rng.random(masks.shape) < 0.1 + 0.5 * masks).astype(float),
    "one value": lambda rng, masks: np.full(masks.shape, 0.3),
    "neighbouring floats": neighbouring_floats,
}


@pytest.fixture(params=list(HOSTILE))
def hostile(request):
    rng = np.random.default_rng(5)
    masks = lesions(rng, 30, 40)
    return HOSTILE[request.param](rng, masks).astype(np.float32), masks


def test_equals_the_pure_functions(hostile):
    metrics = streamed(*hostile)
    same(metrics.compute(), exact(*hostile))
    assert metrics.error_bound == 0


def test_equals_scikit_learn(hostile):
    result = streamed(*hostile).compute()
    scores, labels = hostile[0].astype(np.float64).ravel(), hostile[1].ravel()
    assert result["auroc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert result["ap"] == pytest.approx(average_precision_score(labels, scores), abs=1e-12)


def test_pieces_change_nothing(hostile, monkeypatch):
    monkeypatch.setattr(tally, "BLOCK", 1 << 10)
    monkeypatch.setattr(tally, "SAMPLES_PER_BLOCK", 16)
    same(streamed(*hostile).compute(), exact(*hostile))


@pytest.mark.parametrize("memory_bytes", [1 << 12, 1 << 16, 1 << 18])
def test_beyond_its_memory_the_error_keeps_its_bound(hostile, memory_bytes, monkeypatch):
    monkeypatch.setattr(tally, "BLOCK", 1 << 11)
    monkeypatch.setattr(tally, "SAMPLES_PER_BLOCK", 32)
    metrics = streamed(*hostile, memory_bytes=memory_bytes)
    same(metrics.compute(), exact(*hostile), metrics.error_bound + 1e-12, skip=["pro"])
    assert sum(run.values.size for run in metrics._normal.runs()) <= memory_bytes // 8
    distinct = np.unique(hostile[0][~hostile[1]]).size
    if distinct <= memory_bytes // 32:
        assert metrics.error_bound == 0
    if distinct > memory_bytes // 8:
        assert metrics.error_bound > 0


def test_the_bound_is_small_where_memory_is_not():
    """400,000 pixels in room for 130,000: joined several times, and still within 1e-3."""
    rng = np.random.default_rng(2)
    masks = lesions(rng, 40, 100, 20)
    maps = (rng.normal(size=masks.shape) + masks).astype(np.float32)
    metrics = streamed(maps, masks, memory_bytes=1 << 20)
    assert 0 < metrics.error_bound < 1e-3
    same(metrics.compute(), exact(maps, masks), metrics.error_bound, skip=["pro"])


@pytest.mark.slow
def test_the_error_stays_below_1e5_in_less_room_than_the_values_need():
    rng = np.random.default_rng(2)
    masks = lesions(rng, 120, 400, 60)
    maps = (rng.normal(size=masks.shape) + masks).astype(np.float32)
    metrics = streamed(maps, masks, memory_bytes=1 << 26)
    assert 0 < metrics.error_bound <= 1e-5
    same(metrics.compute(), exact(maps, masks), metrics.error_bound)


def test_joined_values_keep_every_count_within_its_share():
    """The promise of the tally itself, at every threshold and not only in the areas."""
    rng = np.random.default_rng(4)
    values = rng.normal(size=50_000).astype(np.float32)
    weights = 1 / rng.integers(1, 100, values.size)
    held = tally.Tally(weighted=True, memory_bytes=1 << 17)
    plain = tally.Tally(weighted=False, memory_bytes=1 << 16)
    for part, share in zip(np.split(values, 50), np.split(weights, 50), strict=True):
        held.add(part, share)
        plain.add(part)
    order = np.argsort(values)
    thresholds = values[order][::7]
    counts = np.arange(values.size)[::-1][::7]
    found = np.cumsum(weights[order][::-1])[::-1][::7] - weights[order][::7]
    lost = counts - plain.above(thresholds)
    assert 0 < plain.error < 0.1
    assert (lost >= 0).all()
    assert (lost <= plain.error * counts + 1e-9).all()
    lost = found - held.above(thresholds)
    assert 0 < held.error < 0.1
    assert lost.min() > -1e-6
    assert lost.max() <= held.error * weights.sum()
    assert sum(int(run.counts.sum()) for run in held.runs()) == values.size


@st.composite
def images(draw):
    shape = (draw(st.integers(2, 6)), 3, 4)
    masks = draw(hnp.arrays(np.bool_, shape))
    maps = draw(hnp.arrays(np.float32, shape, elements=st.integers(0, 9).map(lambda k: k / 9)))
    assume(masks.any() and not masks.all())
    return maps, masks


@settings(max_examples=60, deadline=None)
@given(images(), st.data())
def test_shards_in_any_order_are_the_whole(case, data):
    maps, masks = case
    owner = data.draw(hnp.arrays(np.int64, len(maps), elements=st.integers(0, 2)))
    workers = [streamed(maps[owner == k], masks[owner == k]) for k in range(3)]
    merged = PixelMetrics()
    for k in data.draw(st.permutations(range(3))):
        merged.merge(pickle.loads(pickle.dumps(workers[k])))
    same(merged.compute(), exact(maps, masks))


def test_merging_leaves_the_other_as_it_was_and_keeps_the_bound(monkeypatch):
    monkeypatch.setattr(tally, "BLOCK", 1 << 10)
    rng = np.random.default_rng(8)
    masks = lesions(rng, 40, 40)
    maps = (rng.normal(size=masks.shape) + 2 * masks).astype(np.float32)
    first, second = (streamed(maps[i::2], masks[i::2], memory_bytes=1 << 16) for i in (0, 1))
    before = second.compute()
    first.merge(second)
    first.update(maps[0], masks[0])
    assert second.compute() == before
    whole = exact(np.concatenate([maps, maps[:1]]), np.concatenate([masks, masks[:1]]))
    assert first.error_bound > 0
    same(first.compute(), whole, first.error_bound, skip=["pro"])


def test_computing_in_between_changes_nothing():
    rng = np.random.default_rng(9)
    masks = lesions(rng, 9, 20)
    maps = rng.random(masks.shape, np.float32)
    metrics = streamed(maps[:5], masks[:5])
    metrics.compute()
    metrics.update(maps[5:], masks[5:])
    same(metrics.compute(), exact(maps, masks))


def test_a_map_that_is_changed_later_does_not_matter():
    map_, mask = np.arange(6, dtype=np.float32).reshape(2, 3), np.eye(2, 3, dtype=bool)
    metrics = PixelMetrics()
    metrics.update(map_, mask)
    expected = exact(map_[None].copy(), mask[None].copy())
    map_[:], mask[:] = 0, True
    same(metrics.compute(), expected)


def test_what_cannot_be_used_is_refused_and_leaves_no_trace():
    metrics = PixelMetrics()
    good, mask = np.array([[0.0, 0.25, 0.5, 1.0]]), np.array([[0, 0, 0, 1]])
    for maps, masks, message in [
        ([good, good * np.nan], [mask, mask], "4 of 4 pixels of map 1 are NaN"),
        ([good, good * 1e300], [mask, mask], "3 of 4 pixels, read as float32, are NaN or infinite"),
        ([good], [mask[:, :3]], r"shape \(1, 4\) and its mask \(1, 3\)"),
        ([good], [mask, mask], "1 maps but 2 masks"),
        ([good], [mask * 255], "neither 0 nor 1"),
    ]:
        with pytest.raises(InputError, match=message):
            metrics.update(maps, masks)
    with pytest.raises(InputError, match=r"No pixel has label 0 or label 1"):
        metrics.compute()
    metrics.update(good, mask)
    same(metrics.compute(), exact(good[None], mask[None].astype(bool)))


def test_one_class_is_not_enough():
    metrics = PixelMetrics()
    metrics.update(np.ones((3, 2, 2)), np.zeros((3, 2, 2)))
    with pytest.raises(InputError, match=r"label 1 \(0 = normal: 12, 1 = abnormal: 0\)"):
        metrics.compute()
    with pytest.raises(SettingsError, match="at least 4096, not 100"):
        PixelMetrics(memory_bytes=100)


def test_image_metrics_are_the_pure_functions():
    rng = np.random.default_rng(6)
    labels = rng.random(300) < 0.4
    scores = np.clip(rng.normal(0.4, 0.2, 300) + 0.2 * labels, 0, 1).astype(np.float32)
    whole, shards = ImageMetrics(), [ImageMetrics(), ImageMetrics()]
    whole.update(scores, labels)
    for index in range(300):
        shards[index % 2].update(scores[index], labels[index])
    shards[0].merge(shards[1])
    expected = {
        "auroc": auroc(scores, labels),
        "f1_max": f1_max(scores, labels),
        "ap": average_precision(scores, labels),
        "sensitivity_at_95_specificity": sensitivity_at_specificity(scores, labels, 0.95),
        "fpr_at_95_tpr": fpr_at_tpr(scores, labels, 0.95),
        "ece": expected_calibration_error(scores, labels),
    }
    assert whole.compute() == expected
    same(shards[0].compute(), expected)
    assert whole.scores.tolist() == scores.tolist()
    assert whole.labels.tolist() == labels.tolist()
    assert len(shards[1].scores) == 150


def test_image_metrics_without_probabilities_or_classes():
    metrics = ImageMetrics()
    with pytest.raises(InputError, match="label 0 or label 1"):
        metrics.compute()
    metrics.update([3.0, 5.0], [0, 1])
    assert metrics.compute()["ece"] is None
    assert metrics.compute()["auroc"] == 1.0
    with pytest.raises(InputError, match="NaN"):
        metrics.update(np.nan, 1)
