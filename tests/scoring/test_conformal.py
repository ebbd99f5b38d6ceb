import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.errors import InputError, SettingsError
from recap.scoring.conformal import (
    allowed_rank,
    images_needed,
    p_value,
    percent,
    rate_interval,
    smallest_rate,
    threshold_at,
)

# Few distinct values, so that ties are the rule.
COARSE = st.integers(0, 6).map(lambda value: value / 7)
FINE = st.floats(0, 1, allow_nan=False)
SCORES = st.lists(COARSE | FINE, min_size=1, max_size=60).map(sorted)
RATES = st.floats(0.001, 0.999) | st.integers(1, 99).map(lambda value: value / 100)


@given(SCORES, COARSE | FINE)
def test_p_values_are_the_definition(scores, score):
    expected = (1 + sum(other >= score for other in scores)) / (len(scores) + 1)
    assert p_value(scores, score) == expected


@given(SCORES, RATES)
def test_the_threshold_is_the_smallest_score_with_such_a_p_value(scores, rate):
    if rate < smallest_rate(len(scores)):
        with pytest.raises(SettingsError, match="at best"):
            threshold_at(scores, rate)
        return
    threshold = threshold_at(scores, rate)
    assert p_value(scores, threshold) <= rate
    assert p_value(scores, float(np.nextafter(threshold, -np.inf))) > rate


@given(st.lists(COARSE | FINE, min_size=2, max_size=40), RATES)
def test_at_most_the_rate_of_exchangeable_scores_is_called(scores, rate):
    """Each of n + 1 scores in turn is the new one: that is all that exchangeability says."""
    called = 0
    for index, score in enumerate(scores):
        others = sorted(scores[:index] + scores[index + 1 :])
        called += p_value(others, score) <= rate
    assert called / len(scores) <= rate


@given(st.integers(1, 3000), RATES)
def test_ranks_agree_with_p_values_as_they_are_compared(n, rate):
    p_values = np.arange(1, n + 2) / (n + 1)
    expected = int(np.count_nonzero(p_values <= rate))
    if expected == 0:
        with pytest.raises(SettingsError):
            allowed_rank(n, rate)
    else:
        assert allowed_rank(n, rate) == expected


@given(RATES)
def test_as_many_images_as_needed_and_not_one_less(rate):
    n = images_needed(rate)
    assert smallest_rate(n) <= rate or n == 1
    assert n == 1 or smallest_rate(n - 1) > rate


def test_one_image_allows_a_half():
    assert smallest_rate(1) == 0.5
    assert threshold_at([0.3], 0.5) == np.nextafter(0.3, 1)
    assert p_value([0.3], 0.3) == 1.0
    assert p_value([0.3], 0.31) == 0.5


def test_equal_scores_are_never_called():
    scores = [0.4] * 99
    assert threshold_at(scores, 0.01) == np.nextafter(0.4, 1)
    assert threshold_at(scores, 0.9) == np.nextafter(0.4, 1)
    assert p_value(scores, 0.4) == 1.0


def test_too_few_images_name_the_remedy():
    with pytest.raises(SettingsError, match=r"With 30 normal images .* is 3\.3 % at best, not 1 %"):
        threshold_at([0.1] * 30, 0.01)
    with pytest.raises(SettingsError, match="Give 99 or more, or a larger --fpr"):
        threshold_at([0.1] * 30, 0.01)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 5, float("nan")])
def test_impossible_rates(rate):
    with pytest.raises(SettingsError, match=r"between 0 and 1.*Give 0\.05 for 5 %"):
        threshold_at([0.1, 0.2], rate)


def test_no_scores():
    with pytest.raises(InputError, match="no normal scores"):
        threshold_at([], 0.5)


def test_the_interval_holds_what_thresholds_really_do():
    """Uniform scores: the rate of a threshold t is 1 − t. 4,000 calibrations of 50 images."""
    rng = np.random.default_rng(0)
    rates = [1 - threshold_at(sorted(rng.random(50)), 0.1) for _ in range(4000)]
    low, high = rate_interval(50, 0.1)
    assert np.quantile(rates, 0.025) == pytest.approx(low, abs=0.006)
    assert np.quantile(rates, 0.975) == pytest.approx(high, abs=0.006)
    assert np.mean(rates) == pytest.approx(5 / 51, abs=0.003)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.05, "5 %"), (1 / 31, "3.3 %"), (1 / 3, "34 %"), (0.001, "0.1 %"), (0.29, "29 %")],
)
def test_rates_in_words_are_rounded_up(rate, text):
    assert percent(rate) == text
