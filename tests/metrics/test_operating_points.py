"""Sensitivity at a specificity, FPR at a TPR, calibration error."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

from recap.errors import InputError
from recap.metrics import expected_calibration_error, fpr_at_tpr, sensitivity_at_specificity


@st.composite
def ranked(draw):
    n = draw(st.integers(2, 40))
    scores = draw(st.lists(st.integers(0, 9).map(lambda k: k / 9), min_size=n, max_size=n))
    labels = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    assume(0 < sum(labels) < n)
    return scores, labels


def slow_points(scores, labels):
    """(TPR, FPR) at every threshold, and with nothing called."""
    pairs = list(zip(scores, labels, strict=True))
    n_positive = sum(labels)
    yield 0.0, 0.0
    for threshold in set(scores):
        tp = sum(s >= threshold and z for s, z in pairs)
        fp = sum(s >= threshold and not z for s, z in pairs)
        yield tp / n_positive, fp / (len(labels) - n_positive)


def slow_ece(probabilities, labels, bins):
    total = 0.0
    for k in range(bins):
        inside = [
            (p, z)
            for p, z in zip(probabilities, labels, strict=True)
            if (k / bins < p <= (k + 1) / bins) or (k == 0 and p == 0)
        ]
        if inside:
            mean_p = sum(p for p, _ in inside) / len(inside)
            frequency = sum(z for _, z in inside) / len(inside)
            total += len(inside) / len(labels) * abs(mean_p - frequency)
    return total


@given(ranked(), st.sampled_from([0.0, 0.5, 0.8, 0.95, 1.0]))
def test_agree_with_the_slow_loop(case, level):
    points = list(slow_points(*case))
    best = max(tpr for tpr, fpr in points if 1 - fpr >= level - 1e-12)
    assert sensitivity_at_specificity(*case, level) == pytest.approx(best)
    lowest = min(fpr for tpr, fpr in points if tpr >= level)
    assert fpr_at_tpr(*case, level) == pytest.approx(lowest)


def test_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    labels = rng.random(5000) < 0.3
    scores = (rng.normal(size=5000) + 1.5 * labels).round(2)
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    assert sensitivity_at_specificity(scores, labels, 0.95) == tpr[fpr <= 0.05].max()
    assert fpr_at_tpr(scores, labels, 0.95) == fpr[tpr >= 0.95].min()


def test_one_false_positive_in_twenty_is_95_per_cent_specificity():
    scores = [*range(20), 18.5]
    labels = [0] * 20 + [1]
    assert sensitivity_at_specificity(scores, labels, 0.95) == 1.0
    assert sensitivity_at_specificity(scores, labels, 0.951) == 0.0
    assert fpr_at_tpr(scores, labels, 0.95) == 0.05


@given(
    st.lists(st.tuples(st.floats(0, 1, width=32), st.integers(0, 1)), min_size=1, max_size=60),
    st.sampled_from([1, 2, 4, 16]),
)
def test_calibration_error_agrees_with_the_slow_loop(pairs, bins):
    probabilities, labels = zip(*pairs, strict=True)
    expected = slow_ece(probabilities, labels, bins)
    assert expected_calibration_error(probabilities, labels, bins) == pytest.approx(expected)


def test_calibration_error_of_sure_and_of_calibrated_scores():
    rng = np.random.default_rng(1)
    probabilities = rng.random(200_000)
    labels = rng.random(200_000) < probabilities
    assert expected_calibration_error(probabilities, labels) < 0.01
    assert expected_calibration_error([0.0, 1.0], [0, 1]) == 0.0
    assert expected_calibration_error([0.0, 1.0], [1, 0]) == 1.0
    assert expected_calibration_error([1.0, 1.0], [1, 1]) == 0.0


def test_calibration_edges_belong_to_the_lower_bin():
    # 0.5 joins 0.4 in the lower of two bins, where the gaps of both labels cancel in part.
    assert expected_calibration_error([0.4, 0.5, 0.9], [0, 1, 1], 2) == pytest.approx(0.2 / 3)


@pytest.mark.parametrize(
    ("probabilities", "labels", "bins", "message"),
    [
        ([], [], 15, "no probabilities"),
        ([0.5, 1.5], [0, 1], 15, "from 0.5 to 1.5"),
        ([-0.5, 0.5], [0, 1], 15, "from -0.5 to 0.5"),
        ([np.nan], [0], 15, "NaN"),
        ([0.5], [0], 0, "at least 1, not 0"),
        ([0.5], [0, 1], 15, "one label per score"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(probabilities, labels, bins, message):
    with pytest.raises(InputError, match=message):
        expected_calibration_error(probabilities, labels, bins)


@pytest.mark.parametrize("metric", [sensitivity_at_specificity, fpr_at_tpr])
def test_what_cannot_be_ranked_is_refused(metric):
    with pytest.raises(InputError, match="needs both classes"):
        metric([0.1, 0.2], [1, 1])
    with pytest.raises(InputError, match=r"in 0..1, not 95. Give 0.95"):
        metric([0.1, 0.2], [0, 1], 95)
