"""Confidence of a metric: bootstrap over images, or over patients with all their images.

Resamples are stratified: patients with only normal images, with only abnormal ones and with both
are drawn among themselves. So no resample lacks a class, and the prevalence stays about as it is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recap.errors import InputError, SettingsError, counted
from recap.metrics.curve import DoubleArray, IntArray, first_of_each
from recap.metrics.functional import auroc, average_precision, f1_max
from recap.metrics.inputs import both_classes
from recap.types import BoolArray

Metric = Callable[[Any, Any], float]
Groups = Sequence[object] | NDArray[Any]

BLOCK_VALUES = 1 << 21


@dataclass(frozen=True)
class Interval:
    """A metric and its percentile interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """A metric of A minus that of B on the same images, its interval and two-sided p-value."""

    difference: float
    low: float
    high: float
    p_value: float


def bootstrap_ci(
    metric: Metric,
    scores: ArrayLike,
    labels: ArrayLike,
    groups: Groups | None = None,
    samples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Percentile interval of a metric; `groups` names the patient of each image.

    An image whose group is empty, None or NaN stands for itself.
    """
    values, positive = both_classes(scores, labels)
    resampled = _resampled(metric, [values], positive, groups, samples, seed)[0]
    return Interval(float(metric(values, positive)), *_percentiles(resampled, level))


def paired_bootstrap(
    metric: Metric,
    scores_a: ArrayLike,
    scores_b: ArrayLike,
    labels: ArrayLike,
    groups: Groups | None = None,
    samples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Comparison:
    """Test whether A is better than B, both on the same resamples of the same images."""
    a, positive = both_classes(scores_a, labels)
    b, _ = both_classes(scores_b, labels)
    resampled = _resampled(metric, [a, b], positive, groups, samples, seed)
    differences = resampled[0] - resampled[1]
    # One added to both counts: a finite number of resamples never proves p = 0.
    tails = [np.count_nonzero(side) for side in (differences <= 0, differences >= 0)]
    p_value = min(1.0, 2 * (min(tails) + 1) / (samples + 1))
    difference = float(metric(a, positive)) - float(metric(b, positive))
    return Comparison(difference, *_percentiles(differences, level), p_value)


def _percentiles(values: DoubleArray, level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise SettingsError(f"The level must lie between 0 and 1, not {level}. Give 0.95 for 95 %.")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled(
    metric: Metric,
    methods: list[NDArray[Any]],
    positive: BoolArray,
    groups: Groups | None,
    samples: int,
    seed: int,
) -> DoubleArray:
    """The metric of each method on each resample: (methods, samples)."""
    if samples < 1:
        raise SettingsError(f"The number of resamples must be at least 1, not {samples}.")
    units = _units(groups, positive.size)
    measure = _FROM_COUNTS.get(metric)
    blocks: list[list[DoubleArray]] = [[] for _ in methods]
    for repeats in _draw(units, positive, samples, seed):
        for block, scores in zip(blocks, methods, strict=True):
            if measure is not None:
                block.append(measure(*_counts(repeats, scores, positive)))
            else:
                picks = [np.repeat(np.arange(row.size), row) for row in repeats]
                block.append(np.array([metric(scores[p], positive[p]) for p in picks]))
    return np.array([np.concatenate(block) for block in blocks])


def _units(groups: Groups | None, n_images: int) -> IntArray:
    """The number of the patient that each image belongs to."""
    if groups is None:
        return np.arange(n_images)
    if len(groups) != n_images:
        raise InputError(f"There are {len(groups)} groups for {n_images} images. Give one each.")
    names = [(0, i) if _is_missing(g) else (1, g) for i, g in enumerate(groups)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names])


def _is_missing(group: object) -> bool:
    """None, empty, or what tables have where nothing stands: NaN, which differs from itself."""
    return group is None or group == "" or bool(group != group)


def _draw(units: IntArray, positive: BoolArray, samples: int, seed: int) -> Iterator[IntArray]:
    """Count how often each image is in each resample: blocks of (resamples, images)."""
    rng = np.random.default_rng(seed)
    n_units = int(units.max()) + 1
    has_abnormal = np.bincount(units, positive, n_units) > 0
    has_normal = np.bincount(units, ~positive, n_units) > 0
    kinds = 2 * has_abnormal + has_normal
    _refuse_what_never_varies(kinds)
    rows = max(1, BLOCK_VALUES // units.size)
    for start in range(0, samples, rows):
        n = min(rows, samples - start)
        drawn = np.empty((n, n_units), np.int64)
        for kind in np.unique(kinds):
            members = np.flatnonzero(kinds == kind)
            picks = rng.integers(members.size, size=(n, members.size))
            picks += np.arange(n)[:, None] * members.size
            drawn[:, members] = np.bincount(picks.ravel(), minlength=picks.size).reshape(n, -1)
        yield drawn[:, units]


def _refuse_what_never_varies(kinds: IntArray) -> None:
    """Both classes need two units that can stand for each other.

    A class that is the same in every resample seems to be known exactly, and the interval is far
    too narrow.
    """
    n_normal, n_abnormal, n_both = np.bincount(kinds, minlength=4)[1:]
    for name, alone in (("normal", n_normal), ("abnormal", n_abnormal)):
        if max(alone, n_both) < 2:
            raise InputError(
                f"All {name} images belong to {counted(int(alone + n_both), 'group')}, no two of "
                "the same kind: there is nothing to resample. Add images of other patients."
            )


def _counts(
    repeats: IntArray, scores: NDArray[Any], positive: BoolArray
) -> tuple[IntArray, IntArray]:
    """Positives and negatives at each distinct score, highest first: (resamples, scores)."""
    order = np.argsort(scores)[::-1]
    starts = first_of_each(scores[order])
    repeats, positive = repeats[:, order], positive[order]
    hits = np.add.reduceat(repeats * positive, starts, axis=1)
    return hits, np.add.reduceat(repeats * ~positive, starts, axis=1)


def _aurocs(hits: IntArray, misses: IntArray) -> DoubleArray:
    n_negative = misses.sum(1, keepdims=True)
    below = n_negative - np.cumsum(misses, 1)
    won = np.sum(hits * (2 * below + misses), 1)
    return won / (2 * hits.sum(1) * n_negative[:, 0])


def _average_precisions(hits: IntArray, misses: IntArray) -> DoubleArray:
    true_positives = np.cumsum(hits, 1)
    called = np.maximum(true_positives + np.cumsum(misses, 1), 1)
    return np.sum(hits * (true_positives / called), 1) / hits.sum(1)


def _f1_maxima(hits: IntArray, misses: IntArray) -> DoubleArray:
    true_positives = np.cumsum(hits, 1)
    called = true_positives + np.cumsum(misses, 1)
    return np.max(2 * true_positives / (called + hits.sum(1, keepdims=True)), 1)


_FROM_COUNTS: dict[Metric, Callable[[IntArray, IntArray], DoubleArray]] = {
    auroc: _aurocs,
    average_precision: _average_precisions,
    f1_max: _f1_maxima,
}
