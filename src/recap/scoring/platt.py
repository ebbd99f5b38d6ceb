"""A calibrated probability: a logistic curve over labelled scores, fitted as Platt does."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Logistic = tuple[float, float]
"""a and b of 1 / (1 + exp(−(a · score + b)))."""


def fit_logistic(normal: Sequence[float], abnormal: Sequence[float]) -> Logistic | None:
    """The curve of the highest likelihood; None where higher scores are not more often abnormal.

    Targets are (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2) rather than 1 and 0, so that classes which
    do not overlap still give a finite slope.
    """
    from scipy.optimize import minimize

    scores = np.array([*normal, *abnormal], np.float64)
    targets = np.r_[
        np.full(len(normal), 1 / (len(normal) + 2)),
        np.full(len(abnormal), (len(abnormal) + 1) / (len(abnormal) + 2)),
    ]
    middle, width = float(scores.mean()), float(scores.std())
    if width == 0:
        return None
    scaled = (scores - middle) / width

    def loss(curve: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logit = curve[0] * scaled + curve[1]
        gap = 1 / (1 + np.exp(-np.clip(logit, -500, 500))) - targets
        value = np.logaddexp(0, logit) - targets * logit
        return float(value.sum()), np.array([gap @ scaled, gap.sum()])

    slope, offset = minimize(loss, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-8}).x
    if slope <= 0:
        return None
    return float(slope / width), float(offset - slope * middle / width)


def probability_of(curve: Logistic, score: float) -> float:
    """The probability that an image with this score is abnormal, at the calibration's prevalence.

    >>> probability_of((2.0, -1.0), 0.5)
    0.5
    """
    logit = curve[0] * score + curve[1]
    if logit < 0:  # exp() of a large positive number is an error
        return math.exp(logit) / (1 + math.exp(logit))
    return 1 / (1 + math.exp(-logit))
