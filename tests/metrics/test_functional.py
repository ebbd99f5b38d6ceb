import doctest

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score

from recap.errors import InputError
from recap.metrics import auroc, average_precision, f1_max, functional

METRICS = (auroc, average_precision, f1_max)


def slow_auroc(scores, labels):
    wins = pairs = 0.0
    for high, z in zip(scores, labels, strict=True):
        for low, other in zip(scores, labels, strict=True):
            if z and not other:
                pairs += 1
                wins += 1.0 if high > low else 0.5 if high == low else 0.0
    return wins / pairs


def slow_curve(scores, labels):
    """(recall, precision, f1) at every distinct score, highest first."""
    for threshold in sorted(set(scores), reverse=True):
        tp = sum(1 for s, z in zip(scores, labels, strict=True) if s >= threshold and z)
        fp = sum(1 for s, z in zip(scores, labels, strict=True) if s >= threshold and not z)
        fn = sum(labels) - tp
        yield tp / (tp + fn), tp / (tp + fp), 2 * tp / (2 * tp + fp + fn)


def slow_average_precision(scores, labels):
    total = last = 0.0
    for recall, precision, _ in slow_curve(scores, labels):
        total += (recall - last) * precision
        last = recall
    return total


def slow_f1_max(scores, labels):
    return max(f1 for _, _, f1 in slow_curve(scores, labels))


@st.composite
def ranked(draw, values=None):
    """Few distinct values, so that ties are the rule; both classes present."""
    n = draw(st.integers(2, 30))
    if values is None:
        values = st.integers(-4, 4).map(lambda k: k / 4)
    scores = draw(st.lists(values, min_size=n, max_size=n))
    labels = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    assume(0 < sum(labels) < n)
    return scores, labels


@given(ranked())
def test_agrees_with_the_slow_loops(case):
    assert auroc(*case) == pytest.approx(slow_auroc(*case), abs=1e-12)
    assert average_precision(*case) == pytest.approx(slow_average_precision(*case), abs=1e-12)
    assert f1_max(*case) == pytest.approx(slow_f1_max(*case), abs=1e-12)


@given(ranked(st.floats(-1e6, 1e6, width=32)))
def test_agrees_with_scikit_learn(case):
    scores, labels = np.asarray(case[0], np.float32), np.asarray(case[1])
    assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    expected = average_precision_score(labels, scores)
    assert average_precision(scores, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("decimals", [1, 7])
def test_agrees_with_scikit_learn_on_many_scores(decimals):
    rng = np.random.default_rng(3)
    labels = rng.random(20_000) < 0.1
    scores = (rng.normal(size=20_000) + labels).round(decimals).astype(np.float32)
    precision, recall, _ = precision_recall_curve(labels, scores)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert f1_max(scores, labels) == pytest.approx(f1.max(), abs=1e-12)
    expected = average_precision_score(labels, scores)
    assert average_precision(scores, labels) == pytest.approx(expected, abs=1e-12)


def test_float64_scores_are_not_rounded_to_float32():
    scores = [0.5, 0.5 + 1e-12]
    assert auroc(scores, [0, 1]) == 1.0
    assert auroc(scores, [1, 0]) == 0.0


@given(ranked())
def test_a_monotone_transform_changes_nothing(case):
    scores, labels = case
    warped = np.arctan(np.asarray(scores)) * 3 + 7
    for metric in METRICS:
        assert metric(warped, labels) == metric(scores, labels)


@given(ranked(), st.randoms())
def test_order_of_the_samples_does_not_matter(case, random):
    pairs = list(zip(*case, strict=True))
    random.shuffle(pairs)
    for metric in METRICS:
        assert metric(*zip(*pairs, strict=True)) == metric(*case)


@given(ranked())
def test_auroc_of_the_complement(case):
    scores, labels = np.asarray(case[0]), np.asarray(case[1])
    assert auroc(-scores, labels) == pytest.approx(1 - auroc(scores, labels), abs=1e-12)
    assert auroc(scores, 1 - labels) == pytest.approx(1 - auroc(scores, labels), abs=1e-12)


@given(ranked())
def test_bounds(case):
    positives, total = sum(case[1]), len(case[1])
    assert 0 <= auroc(*case) <= 1
    assert 0 < average_precision(*case) <= 1
    assert 2 * positives / (positives + total) - 1e-12 <= f1_max(*case) <= 1


@given(hnp.arrays(np.bool_, st.integers(2, 40)), st.floats(-5, 5, width=32))
def test_equal_scores_say_nothing(labels, value):
    assume(0 < labels.sum() < labels.size)
    scores = np.full(labels.shape, value, np.float32)
    prevalence = labels.mean()
    assert auroc(scores, labels) == 0.5
    assert average_precision(scores, labels) == pytest.approx(prevalence)
    assert f1_max(scores, labels) == pytest.approx(2 * prevalence / (1 + prevalence))


def test_maps_and_other_label_types_give_the_same_numbers():
    scores = np.asarray([[0.1, 0.4], [0.35, 0.8]], np.float32)
    for labels in ([[0, 0], [1, 1]], [[False, False], [True, True]], [[0.0, 0.0], [1.0, 1.0]]):
        assert auroc(scores, labels) == 0.75


def test_the_input_is_left_as_it_was():
    scores = np.asarray([3.0, 1.0, 2.0], np.float32)
    for metric in METRICS:
        metric(scores, [0, 1, 1])
    assert scores.tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([0.1, 0.2], [0, 1, 1], r"shape \(2,\) but labels have \(3,\)"),
        ([0.1, np.nan, np.nan], [0, 1, 1], "2 of 3 scores are NaN or infinite"),
        ([0.1, np.inf], [0, 1], "1 of 2 scores"),
        ([0.1, 0.2], [0, 0], r"label 1 \(0 = normal: 2, 1 = abnormal: 0\)"),
        ([0.1, 0.2], [1, 1], r"label 0 \(0 = normal: 0, 1 = abnormal: 2\)"),
        ([], [], "label 0 or label 1"),
        ([0.1, 0.2, 0.3], [0, 1, 255], "1 labels are neither 0 nor 1, for example .*255"),
        ([0.1, 0.2], [0, np.nan], "neither 0 nor 1"),
        ([0.1, 0.2], ["good", "bad"], "neither 0 nor 1"),
        (["a", "b"], [0, 1], "real numbers"),
    ],
)
def test_what_cannot_be_used_is_refused(metric, scores, labels, message):
    with pytest.raises(InputError, match=message):
        metric(scores, labels)


def test_doctests():
    result = doctest.testmod(functional)
    assert result.attempted >= 3
    assert result.failed == 0
