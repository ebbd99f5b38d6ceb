import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recap.errors import InputError, SettingsError
from recap.metrics import (
    auroc,
    average_precision,
    bootstrap,
    bootstrap_ci,
    f1_max,
    fpr_at_tpr,
    paired_bootstrap,
)

METRICS = (auroc, average_precision, f1_max)
# Every third of the 120 images is abnormal.
ONE_NORMAL = [f"p{i}" if i % 3 == 0 else "one" for i in range(120)]
ONE_ABNORMAL = ["one" if i % 3 == 0 else f"p{i}" for i in range(120)]
ONE_OF_EACH_KIND = ["both", "both", *(f"p{i}" if i % 3 == 0 else "normal" for i in range(2, 120))]


def cohort(seed, n=120, shift=1.0):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3 == 0
    return (rng.normal(size=n) + shift * labels).round(1), labels


def slow_resamples(metric, scores, labels, groups, samples, seed):
    """The same draws as lists of images, so that the metric itself is asked every time."""
    units = bootstrap._units(groups, len(labels))
    values = []
    for block in bootstrap._draw(units, labels, samples, seed):
        for repeats in block:
            picks = [i for i, times in enumerate(repeats) for _ in range(times)]
            values.append(metric(scores[picks], labels[picks]))
    return np.array(values)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("patients", [None, 40, 7])
def test_the_quick_form_is_the_metric_of_each_resample(metric, patients):
    scores, labels = cohort(1)
    groups = None if patients is None else [f"p{i % patients}" for i in range(len(labels))]
    values = slow_resamples(metric, scores, labels, groups, 60, 3)
    result = bootstrap_ci(metric, scores, labels, groups, samples=60, seed=3)
    assert result.value == metric(scores, labels)
    assert result.low == pytest.approx(np.quantile(values, 0.025), abs=1e-12)
    assert result.high == pytest.approx(np.quantile(values, 0.975), abs=1e-12)
    other = bootstrap_ci(lambda s, z: metric(s, z), scores, labels, groups, samples=60, seed=3)
    assert (other.low, other.high) == pytest.approx((result.low, result.high), abs=1e-12)


def test_any_metric_will_do():
    scores, labels = cohort(2)
    result = bootstrap_ci(fpr_at_tpr, scores, labels, samples=50)
    assert result.low < result.value < result.high


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b", "c", "d", "", None])), min_size=2)
)
def test_no_resample_lacks_a_class_or_splits_a_patient(images):
    labels = np.array([z for z, _ in images])
    groups = [group for _, group in images]
    assume(labels.any() and not labels.all())
    units = bootstrap._units(groups, len(labels))
    try:
        blocks = list(bootstrap._draw(units, labels, 30, 0))
    except InputError:
        assume(False)
    repeats = np.concatenate(blocks)
    assert repeats.shape == (30, len(labels))
    assert (repeats[:, labels].sum(1) > 0).all()
    assert (repeats[:, ~labels].sum(1) > 0).all()
    for name in "abcd":
        mine = repeats[:, [group == name for group in groups]]
        assert (mine == mine[:, :1]).all()
    if not any(groups):
        assert (repeats[:, labels].sum(1) == labels.sum()).all()


def test_the_interval_has_the_width_that_theory_gives():
    """Hanley and McNeil's standard error, for scores without ties."""
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 2 == 0
    scores = rng.normal(size=600) + labels
    result = bootstrap_ci(auroc, scores, labels, samples=2000)
    a = result.value
    spread = a * (1 - a) + 299 * (a / (2 - a) - a**2) + 299 * (2 * a**2 / (1 + a) - a**2)
    error = np.sqrt(spread) / 300
    assert result.high - result.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    narrower = bootstrap_ci(auroc, scores, labels, samples=2000, level=0.5)
    assert narrower.high - narrower.low < 0.5 * (result.high - result.low)


def test_images_of_one_patient_are_no_further_evidence():
    scores, labels = cohort(4, 60)
    once = bootstrap_ci(auroc, scores, labels, seed=1)
    groups = np.tile(np.arange(60), 10)
    tenfold = np.tile(scores, 10), np.tile(labels, 10)
    by_patient = bootstrap_ci(auroc, *tenfold, groups, seed=1)
    by_image = bootstrap_ci(auroc, *tenfold, seed=1)
    assert (by_patient.low, by_patient.high) == pytest.approx((once.low, once.high), abs=1e-12)
    assert by_image.high - by_image.low < 0.5 * (once.high - once.low)


def test_images_without_a_group_stand_for_themselves():
    missing = [np.nan, None, "", float("nan"), np.float64("nan"), np.nan]
    for groups in (missing, np.array(missing, object)):
        assert bootstrap._units(groups, 6).tolist() == list(range(6))
    assert bootstrap._units(np.array([1, np.nan, 1, np.nan]), 4).tolist() == [0, 1, 0, 2]
    assert bootstrap._units(["a", np.nan, "a", np.nan], 4).tolist() == [0, 1, 0, 2]


def test_seed_and_block_size(monkeypatch):
    scores, labels = cohort(5)
    result = bootstrap_ci(auroc, scores, labels, seed=1)
    assert bootstrap_ci(auroc, scores, labels, seed=1) == result
    assert bootstrap_ci(auroc, scores, labels, seed=2) != result
    monkeypatch.setattr(bootstrap, "BLOCK_VALUES", 1)
    rows = bootstrap_ci(auroc, scores, labels, seed=1)
    assert (rows.low, rows.high) == pytest.approx((result.low, result.high), abs=0.02)


def test_a_clear_difference_and_none():
    rng = np.random.default_rng(6)
    labels = np.arange(300) % 2 == 0
    good, poor = rng.normal(size=300) + 2 * labels, rng.normal(size=300) + 0.3 * labels
    better = paired_bootstrap(auroc, good, poor, labels)
    assert better.difference == auroc(good, labels) - auroc(poor, labels)
    assert 0 < better.low < better.difference < better.high
    assert better.p_value == pytest.approx(2 / 1001)
    worse = paired_bootstrap(auroc, poor, good, labels)
    assert (worse.difference, worse.low, worse.high) == pytest.approx(
        (-better.difference, -better.high, -better.low)
    )
    assert worse.p_value == better.p_value
    equal = paired_bootstrap(auroc, good, good, labels)
    assert (equal.difference, equal.low, equal.high, equal.p_value) == (0, 0, 0, 1)
    noise = paired_bootstrap(auroc, good + 0.1 * rng.normal(size=300), good, labels)
    assert noise.p_value > 0.01


def test_pairing_finds_what_two_intervals_hide():
    rng = np.random.default_rng(7)
    labels = np.arange(200) % 2 == 0
    b = rng.normal(size=200) + labels
    a = b + 0.15 * labels
    first, second = (bootstrap_ci(auroc, s, labels) for s in (a, b))
    assert first.low < second.high
    assert paired_bootstrap(auroc, a, b, labels).p_value < 0.05


def test_under_no_difference_p_values_are_spread_out():
    rng = np.random.default_rng(11)
    labels = np.arange(100) % 2 == 0
    p_values = []
    for _ in range(60):
        a, b = (rng.normal(size=100) + labels for _ in range(2))
        p_values.append(paired_bootstrap(auroc, a, b, labels, samples=200).p_value)
    assert np.mean(np.array(p_values) < 0.05) < 0.17
    assert 0.3 < np.mean(p_values) < 0.7


def test_many_images_are_quick():
    scores, labels = cohort(8, 3715)
    started = time.process_time()
    bootstrap_ci(auroc, scores, labels)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"labels": np.zeros(120)}, InputError, "needs both classes"),
        ({"scores": np.full(120, np.nan)}, InputError, "NaN"),
        ({"labels": [0, 1]}, InputError, "one label per score"),
        ({"groups": ["a"]}, InputError, "1 groups for 120 images"),
        ({"groups": ["a"] * 120}, InputError, "nothing to resample"),
        ({"groups": ["a", "b", "b"] * 40}, InputError, "All normal images belong to 1 group, no"),
        ({"groups": ONE_NORMAL}, InputError, "All normal images belong to 1 group, no"),
        ({"groups": ONE_ABNORMAL}, InputError, "All abnormal images belong to 1 group, no"),
        ({"groups": ONE_OF_EACH_KIND}, InputError, "All normal images belong to 2 groups, no"),
        ({"samples": 0}, SettingsError, "at least 1, not 0"),
        ({"level": 95}, SettingsError, "between 0 and 1, not 95"),
    ],
)
def test_what_cannot_be_used_is_refused(change, error, message):
    scores, labels = cohort(9)
    arguments = {"scores": scores, "labels": labels, "samples": 20} | change
    with pytest.raises(error, match=message):
        bootstrap_ci(auroc, **arguments)
    arguments["scores_a"] = arguments["scores_b"] = arguments.pop("scores")
    with pytest.raises(error, match=message):
        paired_bootstrap(auroc, **arguments)
