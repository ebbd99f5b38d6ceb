"""The positives ranked among the negatives, and the areas and peaks that follow from it.

Only the thresholds at which a positive sits matter: between two of them recall stands still,
so AP and the overlap of regions gain nothing and F1 can only fall. The positives are therefore
ranked against the negatives, and no curve over all pixels is ever built. Each sum below may be
taken piece by piece, from the highest scores down.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recap.types import BoolArray

IntArray = NDArray[np.int64]
DoubleArray = NDArray[np.float64]


class Ranks(NamedTuple):
    """Counts at every distinct score of a positive, highest score first."""

    hits: IntArray  # positives with exactly this score
    tied: IntArray  # negatives with exactly this score
    above: IntArray  # negatives with a higher score
    n_positive: int
    n_negative: int
    hits_above: int = 0  # positives above all of these: those of earlier pieces

    @property
    def true_positives(self) -> IntArray:
        """Positives called when the threshold is at each of these scores."""
        return self.hits_above + np.cumsum(self.hits)

    @property
    def false_positives(self) -> IntArray:
        """Negatives called when the threshold is at each of these scores."""
        return self.above + self.tied


def rank(scores: NDArray[Any], positive: BoolArray) -> Ranks:
    """Rank the positives among the negatives, in the dtype they came in."""
    negatives = scores[~positive]
    negatives.sort()
    values, hits = np.unique(scores[positive], return_counts=True)
    return rank_values(values, hits.astype(np.int64), negatives)


def rank_values(values: NDArray[Any], hits: IntArray, negatives: NDArray[Any]) -> Ranks:
    """Ranks of rising distinct values, each held by `hits` positives, among sorted negatives."""
    below = np.searchsorted(negatives, values, side="left")
    not_above = np.searchsorted(negatives, values, side="right")
    return Ranks(
        hits=hits[::-1],
        tied=(not_above - below)[::-1],
        above=(negatives.size - not_above)[::-1],
        n_positive=int(hits.sum()),
        n_negative=negatives.size,
    )


def first_of_each(ordered: NDArray[Any]) -> IntArray:
    """Find where each distinct value of an ordered array begins."""
    new = np.ones(ordered.size, np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return np.flatnonzero(new)


def twice_won(ranks: Ranks) -> int:
    """Pairs in which the positive outranks the negative, counted twice so that a tie is one."""
    below = ranks.n_negative - ranks.false_positives
    return int(np.sum(ranks.hits * (2 * below + ranks.tied)))


def precision_sum(ranks: Ranks) -> float:
    """Precision at each positive, summed over the positives."""
    called = ranks.true_positives + ranks.false_positives
    return float(np.sum(ranks.hits * (ranks.true_positives / called)))


def f1_peak(ranks: Ranks) -> float:
    """Highest F1 of these thresholds."""
    called = ranks.true_positives + ranks.false_positives
    f1 = 2 * ranks.true_positives / (called + ranks.n_positive)
    return float(np.max(f1, initial=0.0))


def weighted_area(ranks: Ranks, weights: DoubleArray, fpr_limit: float) -> float:
    """Area under the weight of the positives called, against the FPR from 0 to `fpr_limit`.

    A weight enters at the FPR of the negatives above it, rises in a straight line over those tied
    with it, and stays. Ending the last line at the limit is the interpolation there.
    """
    start = ranks.above / ranks.n_negative
    rise = ranks.tied / ranks.n_negative
    ramp = np.clip(fpr_limit - start, 0, rise)
    steepness = np.divide(1.0, rise, out=np.zeros_like(rise), where=rise > 0)
    full = np.maximum(fpr_limit - start - rise, 0)
    return float(np.sum(weights * (ramp * ramp * steepness / 2 + full)))
