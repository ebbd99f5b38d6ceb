import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.calibration import _SigmoidCalibration
from sklearn.metrics import f1_score

from recap.errors import InputError, SettingsError
from recap.metrics import f1_max
from recap.scoring.calibration import calibrate_scores
from recap.scoring.operating_points import clopper_pearson, operating_points
from recap.scoring.platt import fit_logistic, probability_of

SCORES = st.lists(st.integers(0, 9).map(lambda v: v / 10), min_size=1, max_size=25).map(sorted)


def points(normal, abnormal, threshold=0.5, sensitivity=0.95):
    found = operating_points(normal, abnormal, threshold, sensitivity)
    return {point.name: point for point in found}


def rates(normal, abnormal, threshold):
    called = np.array(abnormal) >= threshold
    kept = np.array(normal) < threshold
    return float(called.mean()), float(kept.mean())


@given(SCORES, SCORES)
def test_points_are_the_best_of_all_thresholds(normal, abnormal):
    found = points(normal, abnormal, sensitivity=0.8)
    for point in found.values():
        expected = rates(normal, abnormal, point.threshold)
        assert (point.sensitivity, point.specificity) == pytest.approx(expected)
    labels = [0] * len(normal) + [1] * len(abnormal)
    scores = np.array(normal + abnormal)
    best = f1_score(labels, scores >= found["f1"].threshold)
    assert best == pytest.approx(f1_max(scores, labels))
    every = [sum(rates(normal, abnormal, t)) for t in {*normal, *abnormal, 2.0}]
    best_youden = found["youden"].sensitivity + found["youden"].specificity
    assert best_youden == pytest.approx(max(every))
    enough = [t for t in set(abnormal) if rates(normal, abnormal, t)[0] >= 0.8]
    assert found["sensitivity"].threshold == max(enough)
    assert found["fpr"].threshold == 0.5


@pytest.mark.parametrize(("hits", "total"), [(0, 7), (7, 7), (3, 7), (19, 20), (1, 1), (0, 1)])
def test_exact_intervals_are_those_of_scipy(hits, total):
    expected = binomtest(hits, total).proportion_ci(0.95, "exact")
    assert clopper_pearson(hits, total) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_intervals_stand_beside_their_rates():
    point = points([0.1, 0.2, 0.3, 0.6], [0.4, 0.7, 0.8], 0.5)["fpr"]
    assert (point.sensitivity, point.specificity) == (2 / 3, 3 / 4)
    assert point.intervals["sensitivity"] == clopper_pearson(2, 3)
    assert point.intervals["specificity"] == clopper_pearson(3, 4)


@pytest.mark.parametrize("sensitivity", [0.0, 1.5, -1.0])
def test_impossible_sensitivities(sensitivity):
    with pytest.raises(SettingsError, match="between 0 and 1"):
        calibrate_scores([0.1] * 20, [0.1] * 20, [0.2], sensitivity=sensitivity)


def test_one_class_is_refused():
    with pytest.raises(InputError):
        points([0.1], [])


@pytest.mark.parametrize("seed", range(4))
def test_the_probability_is_that_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    normal, abnormal = rng.normal(0.3, 0.1, 40).tolist(), rng.normal(0.5, 0.1, 25).tolist()
    reference = _SigmoidCalibration().fit(np.array(normal + abnormal), np.r_[[0] * 40, [1] * 25])
    slope, offset = fit_logistic(normal, abnormal)
    assert (slope, offset) == pytest.approx((-reference.a_, -reference.b_), rel=1e-3)
    for score in (0.0, 0.4, 1.0):
        expected = reference.predict(np.array([score]))[0]
        assert probability_of((slope, offset), score) == pytest.approx(expected, abs=1e-4)


def test_classes_that_do_not_overlap_have_a_finite_slope():
    """Two points: the curve meets Platt's targets 1 / 3 and 2 / 3 exactly."""
    curve = fit_logistic([0.2], [0.8])
    assert probability_of(curve, 0.2) == pytest.approx(1 / 3, abs=1e-5)
    assert probability_of(curve, 0.8) == pytest.approx(2 / 3, abs=1e-5)


def test_scores_that_tell_nothing_give_no_probability():
    assert fit_logistic([0.5, 0.5], [0.5]) is None
    assert fit_logistic([0.8, 0.9], [0.1, 0.2]) is None


@given(st.floats(-1e6, 1e6), st.floats(-1e3, 1e3))
def test_probabilities_are_probabilities(slope, score):
    assert 0 <= probability_of((slope, 0.0), score) <= 1
