"""Thresholds chosen on labelled scores, each with the sensitivity and specificity it has there.

An image counts as abnormal when its score reaches the threshold. Intervals are exact binomial
ones for a threshold that is given; a threshold that the same images chose looks a little better
on them than it is.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from recap.config import Section
from recap.metrics.curve import Ranks, rank
from recap.metrics.inputs import both_classes

PointName = Literal["fpr", "f1", "youden", "sensitivity"]
Interval = tuple[float, float]


class OperatingPoint(Section):
    """A threshold with what it did on the labelled calibration images."""

    name: PointName
    threshold: float
    sensitivity: float
    specificity: float
    intervals: dict[Literal["sensitivity", "specificity"], Interval]
    """95 %, each on its own."""


def operating_points(
    normal: Sequence[float], abnormal: Sequence[float], threshold: float, sensitivity: float
) -> list[OperatingPoint]:
    """The point of the given threshold, of the highest F1, of the highest Youden index, and the
    highest threshold with at least the given sensitivity."""
    scores = np.array([*normal, *abnormal], np.float64)
    labels = np.arange(len(scores)) >= len(normal)
    ranks = rank(*both_classes(scores, labels))
    # Between two abnormal scores nothing is gained, so a best threshold lies at one of them.
    candidates = np.unique(np.array(abnormal, np.float64))[::-1]
    chosen: dict[PointName, float] = {
        "fpr": threshold,
        "f1": float(candidates[np.argmax(_f1(ranks))]),
        "youden": float(candidates[np.argmax(_youden(ranks))]),
        "sensitivity": float(
            candidates[np.argmax(ranks.true_positives / ranks.n_positive >= sensitivity)]
        ),
    }
    return [_point(name, value, normal, abnormal) for name, value in chosen.items()]


def clopper_pearson(hits: int, total: int, level: float = 0.95) -> Interval:
    """Exact binomial interval of a rate seen as `hits` of `total`.

    >>> [round(end, 4) for end in clopper_pearson(9, 10)]
    [0.555, 0.9975]
    """
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else float(betaincinv(hits, total - hits + 1, tail))
    high = 1.0 if hits == total else float(betaincinv(hits + 1, total - hits, 1 - tail))
    return low, high


def _f1(ranks: Ranks) -> "np.ndarray":
    called = ranks.true_positives + ranks.false_positives
    return 2 * ranks.true_positives / (called + ranks.n_positive)


def _youden(ranks: Ranks) -> "np.ndarray":
    """Sensitivity + specificity − 1."""
    missed = ranks.false_positives / ranks.n_negative
    return ranks.true_positives / ranks.n_positive - missed


def _point(
    name: PointName, threshold: float, normal: Sequence[float], abnormal: Sequence[float]
) -> OperatingPoint:
    hits = sum(score >= threshold for score in abnormal)
    kept = sum(score < threshold for score in normal)
    return OperatingPoint(
        name=name,
        threshold=threshold,
        sensitivity=hits / len(abnormal),
        specificity=kept / len(normal),
        intervals={
            "sensitivity": clopper_pearson(hits, len(abnormal)),
            "specificity": clopper_pearson(kept, len(normal)),
        },
    )
