"""Conformal p-values and thresholds from the scores of normal images alone.

If the calibration images and a new normal image are exchangeable (drawn alike, in any order), the
new one's p-value is at most α with probability at most α: for any detector, any scores and any
number of images. Nothing is assumed about how scores are distributed.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from recap.errors import InputError, SettingsError, counted


def p_value(scores: Sequence[float], score: float) -> float:
    """(1 + how many normal scores are at least as high) / (n + 1); `scores` rise.

    >>> p_value([0.1, 0.2, 0.3], 0.25)
    0.5
    """
    as_high = len(scores) - bisect_left(scores, score)
    return (1 + as_high) / (len(scores) + 1)


def smallest_rate(n: int) -> float:
    """The smallest false-positive rate that n normal images can promise."""
    return 1 / (n + 1)


def images_needed(rate: float) -> int:
    """How many normal images it takes to promise a false-positive rate.

    >>> images_needed(0.01), images_needed(0.05)
    (99, 19)
    """
    _need_rate(rate)
    n = math.ceil(1 / rate) - 1
    # 1 / rate is rounded: the definition decides.
    while smallest_rate(n) > rate:
        n += 1
    while n > 1 and smallest_rate(n - 1) <= rate:
        n -= 1
    return max(n, 1)


def allowed_rank(n: int, rate: float) -> int:
    """How many p-values, from the smallest up, are at most `rate`: the largest r, r / (n + 1) ≤ α.

    Asking for more than n images can give is an error with its remedy.
    """
    _need_rate(rate)
    rank = round(rate * (n + 1))
    # Multiplying rounds (0.29 · 100 is 28.999…), so what p-values are compared as decides.
    if rank / (n + 1) > rate:
        rank -= 1
    if rank < 1:
        raise SettingsError(
            f"With {counted(n, 'normal image')} the false-positive rate is "
            f"{percent(smallest_rate(n))} at best, not {percent(rate)}. Give {images_needed(rate)} "
            "or more, or a larger --fpr."
        )
    return rank


def threshold_at(scores: Sequence[float], rate: float) -> float:
    """The smallest score whose p-value is at most `rate`: from there on an image is abnormal.

    `scores` rise. At most r − 1 of them are as high as the threshold, where r / (n + 1) ≤ α.
    """
    if not len(scores):
        raise InputError("There are no normal scores to calibrate on. Give normal images.")
    rank = allowed_rank(len(scores), rate)
    return float(np.nextafter(scores[len(scores) - rank], np.inf))


def rate_interval(n: int, rate: float, level: float = 0.95) -> tuple[float, float]:
    """Where the false-positive rate of this very calibration lies, for `level` of all calibrations.

    The promise holds on average over calibration sets. Given one of n images, the rate that its
    threshold has follows Beta(r, n + 1 − r); scores that tie only lower it.
    """
    from scipy.special import betaincinv

    rank = allowed_rank(n, rate)
    low, high = betaincinv(rank, n + 1 - rank, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def percent(rate: float) -> str:
    """A rate in words, rounded up so that it is never promised smaller than it is.

    >>> percent(0.05), percent(1 / 31), percent(1 / 3)
    ('5 %', '3.3 %', '34 %')
    """
    digits = max(0, 1 - math.floor(math.log10(100 * rate)))
    shown = math.ceil(100 * rate * 10**digits - 1e-9) / 10**digits
    return f"{shown:g} %"


def _need_rate(rate: float) -> None:
    if not 0 < rate < 1:
        raise SettingsError(
            f"The false-positive rate must lie between 0 and 1, not {rate}. Give 0.05 for 5 %."
        )
