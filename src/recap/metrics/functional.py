"""AUROC, average precision and F1-max: exact, from one sort of the scores.

Only the thresholds at which a positive sits matter: between two of them recall stands still,
so AP gains nothing and F1 can only fall. The positives are therefore ranked against the sorted
negatives, in the dtype they came in, and 30 million pixels need no float64 copy.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recap.errors import InputError
from recap.types import BoolArray

IntArray = NDArray[np.int64]


class _Ranks(NamedTuple):
    """Counts at every distinct score of a positive, highest score first."""

    hits: IntArray  # positives with exactly this score
    tied: IntArray  # negatives with exactly this score
    above: IntArray  # negatives with a higher score
    n_positive: int
    n_negative: int


def auroc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Area under the ROC curve: how often a positive outranks a negative, ties counting half.

    >>> auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    """
    ranks = _rank(*_validate(scores, labels))
    below = ranks.n_negative - ranks.above - ranks.tied
    twice_won = int(np.sum(ranks.hits * (2 * below + ranks.tied)))
    return twice_won / (2 * ranks.n_positive * ranks.n_negative)


def average_precision(scores: ArrayLike, labels: ArrayLike) -> float:
    """Precision averaged over the steps of recall, without interpolation.

    >>> round(average_precision([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]), 4)
    0.8333
    """
    ranks = _rank(*_validate(scores, labels))
    true_positives = np.cumsum(ranks.hits)
    precision = true_positives / (true_positives + ranks.tied + ranks.above)
    return float(np.sum(ranks.hits * precision) / ranks.n_positive)


def f1_max(scores: ArrayLike, labels: ArrayLike) -> float:
    """Highest F1 over all thresholds; with P positives, N negatives never below 2P / (2P + N).

    >>> f1_max([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.8
    """
    ranks = _rank(*_validate(scores, labels))
    true_positives = np.cumsum(ranks.hits)
    called = true_positives + ranks.tied + ranks.above
    return float(np.max(2 * true_positives / (called + ranks.n_positive)))


def _rank(scores: NDArray[Any], positive: BoolArray) -> _Ranks:
    negatives = scores[~positive]
    negatives.sort()
    values, hits = np.unique(scores[positive], return_counts=True)
    below = np.searchsorted(negatives, values, side="left")
    not_above = np.searchsorted(negatives, values, side="right")
    return _Ranks(
        hits=hits[::-1],
        tied=(not_above - below)[::-1],
        above=(negatives.size - not_above)[::-1],
        n_positive=int(hits.sum()),
        n_negative=negatives.size,
    )


def _validate(scores: ArrayLike, labels: ArrayLike) -> tuple[NDArray[Any], BoolArray]:
    """Flat floating scores and boolean labels, or an error that says what does not fit."""
    values, marks = np.asarray(scores), np.asarray(labels)
    if values.shape != marks.shape:
        raise InputError(
            f"Scores have shape {values.shape} but labels have {marks.shape}. "
            "Give one label per score."
        )
    if values.dtype.kind not in "fiub":
        raise InputError(f"Scores must be real numbers, but they have dtype {values.dtype}.")
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    broken = values.size - int(np.count_nonzero(np.isfinite(values)))
    if broken:
        raise InputError(
            f"{broken} of {values.size} scores are NaN or infinite. "
            "Find the images that gave them before evaluating."
        )
    positive = _as_bool(marks)
    _need_both_classes(positive)
    return values.ravel(), positive.ravel()


def _as_bool(marks: NDArray[Any]) -> BoolArray:
    if marks.dtype == np.bool_:
        return marks
    positive = np.asarray(marks == 1, dtype=np.bool_)
    odd = ~(positive | np.asarray(marks == 0, dtype=np.bool_))
    if np.any(odd):
        raise InputError(
            f"{np.count_nonzero(odd)} labels are neither 0 nor 1, for example "
            f"{marks[odd].flat[0]!r}. Use 0 for normal and 1 for abnormal."
        )
    return positive


def _need_both_classes(positive: BoolArray) -> None:
    n_positive = int(np.count_nonzero(positive))
    n_negative = positive.size - n_positive
    if not n_positive or not n_negative:
        missing = [f"label {z}" for z, n in ((0, n_negative), (1, n_positive)) if not n]
        raise InputError(
            f"No sample has {' or '.join(missing)} (0 = normal: {n_negative}, 1 = abnormal: "
            f"{n_positive}). This metric needs both classes: add samples of the missing one."
        )
