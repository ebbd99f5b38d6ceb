"""Metrics of scores with labels, exact from one sort. Fractions, not per cent.

The scores stay in the dtype they came in, and 30 million pixels need no float64 copy.
"""

import numpy as np
from numpy.typing import ArrayLike

from recap.errors import InputError
from recap.metrics.curve import f1_peak, precision_sum, rank, twice_won
from recap.metrics.inputs import both_classes, scores_and_labels


def auroc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Area under the ROC curve: how often a positive outranks a negative, ties counting half.

    >>> auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    """
    ranks = rank(*both_classes(scores, labels))
    return twice_won(ranks) / (2 * ranks.n_positive * ranks.n_negative)


def average_precision(scores: ArrayLike, labels: ArrayLike) -> float:
    """Precision averaged over the steps of recall, without interpolation.

    >>> round(average_precision([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]), 4)
    0.8333
    """
    ranks = rank(*both_classes(scores, labels))
    return precision_sum(ranks) / ranks.n_positive


def f1_max(scores: ArrayLike, labels: ArrayLike) -> float:
    """Highest F1 over all thresholds; with P positives, N negatives never below 2P / (2P + N).

    >>> f1_max([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.8
    """
    return f1_peak(rank(*both_classes(scores, labels)))


def sensitivity_at_specificity(
    scores: ArrayLike, labels: ArrayLike, specificity: float = 0.95
) -> float:
    """Highest sensitivity of a threshold with at least this specificity; no interpolation.

    >>> sensitivity_at_specificity([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.5
    """
    _need_fraction("specificity", specificity)
    ranks = rank(*both_classes(scores, labels))
    # As counts over N: 1 − 0.95 is not the double 0.05, and 19 of 20 would be refused.
    kept = (ranks.n_negative - ranks.false_positives) / ranks.n_negative >= specificity
    return float(np.max(ranks.true_positives[kept], initial=0) / ranks.n_positive)


def fpr_at_tpr(scores: ArrayLike, labels: ArrayLike, tpr: float = 0.95) -> float:
    """Lowest false-positive rate of a threshold with at least this true-positive rate.

    >>> fpr_at_tpr([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.5
    """
    _need_fraction("tpr", tpr)
    ranks = rank(*both_classes(scores, labels))
    if tpr == 0:
        return 0.0  # calling nothing is enough, and no positive sits at that threshold
    first = int(np.argmax(ranks.true_positives / ranks.n_positive >= tpr))
    return float(ranks.false_positives[first] / ranks.n_negative)


def expected_calibration_error(
    probabilities: ArrayLike, labels: ArrayLike, bins: int = 15
) -> float:
    """Gap between mean probability of "abnormal" and its frequency, averaged over equal bins.

    A bin holds its upper edge, the first one 0 as well. One class is enough.

    >>> round(expected_calibration_error([0.1, 0.1, 0.9, 0.9], [0, 0, 1, 0]), 4)
    0.25
    """
    values, positive = scores_and_labels(probabilities, labels)
    if not values.size:
        raise InputError("There are no probabilities. Give one for each label.")
    if values.min() < 0 or values.max() > 1:
        raise InputError(
            f"Probabilities must lie in 0..1, but these run from {values.min():g} to "
            f"{values.max():g}. Calibrate the scores first."
        )
    if bins < 1:
        raise InputError(f"The number of bins must be at least 1, not {bins}.")
    index = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], values, side="left")
    gaps = np.bincount(index, values.astype(np.float64) - positive, minlength=bins)
    return float(np.abs(gaps).sum() / values.size)


def _need_fraction(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InputError(f"The {name} must lie in 0..1, not {value}. Give 0.95 for 95 %.")
