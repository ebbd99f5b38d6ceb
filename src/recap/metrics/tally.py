"""Millions of float32 values in bounded memory: exact as long as they fit, then provably close.

No fixed bins can promise an error: whatever lies within one bin loses its order, and saturated
maps crowd near 0 and 1. A tally keeps the distinct values with their counts instead. When these
outgrow the budget, neighbours are joined, and a value only ever moves down past a share
`resolution` of the values above it. So every count of values at or above a threshold stays right
within that share *of itself*, from the highest rank to the lowest.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recap.metrics.curve import DoubleArray, IntArray, first_of_each
from recap.types import FloatArray

BLOCK = 1 << 22  # values sorted at once
SAMPLES_PER_BLOCK = 1024


class Run(NamedTuple):
    """Distinct values in rising order, how often each was seen, and their weight together."""

    values: FloatArray
    counts: NDArray[Any]
    weights: DoubleArray | None


class Tally:
    """A multiset of float32 values, each with a weight if `weighted`."""

    def __init__(self, weighted: bool, memory_bytes: int) -> None:
        self.capacity = memory_bytes // (16 if weighted else 8)
        # Leaves some 1 / resolution × (1 + log(size × resolution)) values: below the capacity.
        self.resolution = 16 / self.capacity
        self.error = 0.0  # share by which a count at or above a threshold may be too low
        self.size = 0
        self._runs: list[Run] = []
        self._waiting: list[tuple[FloatArray, DoubleArray | None]] = []
        self._n_waiting = 0

    def add(self, values: FloatArray, weights: DoubleArray | None = None) -> None:
        """Take in finite values; they are kept, so the caller must not change them."""
        self._waiting.append((values, weights))
        self._n_waiting += values.size
        self.size += values.size
        self._settle_if_many()

    def merge(self, other: "Tally") -> None:
        """Take in all that another tally holds; it stays as it is."""
        self._runs = self._runs + other._runs
        self._waiting = self._waiting + other._waiting
        self._n_waiting += other._n_waiting
        self.size += other.size
        self.error = max(self.error, other.error)
        self._settle_if_many()

    def runs(self) -> list[Run]:
        """All values, in runs that may share values; of merged values the lowest stands for all."""
        self._settle()
        return self._runs

    def above(self, thresholds: NDArray[Any]) -> DoubleArray:
        """Weight (count where unweighted) of the values strictly above each rising threshold."""
        total = np.zeros(len(thresholds))
        for run in self.runs():
            mass = run.counts if run.weights is None else run.weights
            cuts = [*np.searchsorted(run.values, thresholds, side="right"), run.values.size]
            steps = [mass[a:b].sum() for a, b in pairwise(cuts)]
            total += np.cumsum(steps[::-1])[::-1]
        return total

    def _settle_if_many(self) -> None:
        if self._n_waiting >= min(BLOCK, self.capacity // 4) or self._entries() > self.capacity:
            self._settle()

    def _settle(self) -> None:
        if self._n_waiting:
            values = np.concatenate([values for values, _ in self._waiting])
            shares = [weights for _, weights in self._waiting if weights is not None]
            self._waiting, self._n_waiting = [], 0
            if shares:
                ones = np.ones(values.size, np.uint32)
                new = _join([Run(values, ones, np.concatenate(shares))])
            else:
                distinct, counts = np.unique(values, return_counts=True)
                new = Run(distinct, counts.astype(np.uint32), None)
            self._runs = [*self._runs, new]
        if self._entries() > self.capacity:
            self._shrink()

    def _entries(self) -> int:
        return sum(run.values.size for run in self._runs)

    def _shrink(self) -> None:
        """Join equal values of different runs and, if that does not halve them, neighbours too."""
        joined: list[Run] = []
        for (run,) in pieces(self._runs):
            joined.append(run)
            if sum(run.values.size for run in joined) > self.capacity // 2:
                break
        else:
            self._runs = joined
            return
        joined.clear()
        total = sum(float(run.weights.sum()) for run in self._runs if run.weights is not None)
        descending = (run for (run,) in pieces(self._runs) if run.values.size)
        self._runs = list(_coarsen(descending, self.resolution, total))
        self.error += self.resolution


def pieces(*everything: list[Run]) -> Iterator[tuple[Run, ...]]:
    """Walk down several tallies' runs at once: a piece has all values of one range, of each."""
    stride = max(1, BLOCK // SAMPLES_PER_BLOCK)
    samples = [run.values[::stride] for runs in everything for run in runs]
    cuts = np.sort(np.concatenate(samples or [np.empty(0, np.float32)]))[::-1]
    high: Any = np.inf
    for low in (*np.unique(cuts[SAMPLES_PER_BLOCK::SAMPLES_PER_BLOCK])[::-1], -np.inf):
        yield tuple(_join([_between(run, low, high) for run in runs]) for runs in everything)
        high = low


def _between(run: Run, low: Any, high: Any) -> Run:
    first, last = np.searchsorted(run.values, np.array([low, high], np.float32))
    weights = None if run.weights is None else run.weights[first:last]
    return Run(run.values[first:last], run.counts[first:last], weights)


def _join(runs: list[Run]) -> Run:
    """One run of distinct values."""
    runs = [run for run in runs if run.values.size] or runs[:1] or [_EMPTY]
    values = np.concatenate([run.values for run in runs])
    order = np.argsort(values, kind="stable")
    values = values[order]
    starts = first_of_each(values)
    counts = np.concatenate([run.counts for run in runs])[order]
    shares = [run.weights for run in runs if run.weights is not None]
    weights = _sums(np.concatenate(shares)[order], starts) if shares else None
    return Run(values[starts], _narrow(_sums(counts.astype(np.int64), starts)), weights)


def _sums(array: NDArray[Any], starts: IntArray) -> NDArray[Any]:
    return np.add.reduceat(array, starts) if starts.size else array[:0]


def _narrow(counts: IntArray) -> NDArray[Any]:
    return counts.astype(np.uint32) if counts.max(initial=0) < 1 << 32 else counts


def _coarsen(runs: Iterator[Run], resolution: float, weight: float) -> Iterator[Run]:
    """Join neighbours in disjoint runs, given from the highest down.

    Values whose rank falls into the same step of a geometric ladder become the lowest of them.
    The first 1 / resolution ranks stay as they are, and the weight of a group is bounded too.
    """
    count_above, weight_above = 0, 0.0
    for run in runs:
        counts = run.counts[::-1].astype(np.int64)
        ranks = count_above + np.cumsum(counts) - counts
        share = ranks * resolution
        geometric = np.floor(np.log(np.maximum(share, 1)) / np.log1p(resolution))
        steps = np.where(share < 1, ranks - 1 / resolution - 1, geometric)
        count_above += int(counts.sum())
        new = np.diff(steps, prepend=-np.inf) > 0
        if run.weights is not None:
            below = weight_above + np.cumsum(run.weights[::-1]) - run.weights[::-1]
            new |= np.diff(np.floor(below / (resolution * weight)), prepend=-1) > 0
            weight_above += float(run.weights.sum())
        starts = np.flatnonzero(new)
        lowest = np.append(starts[1:], counts.size) - 1
        weights = None if run.weights is None else _sums(run.weights[::-1], starts)[::-1]
        values = run.values[::-1][lowest][::-1]
        yield Run(values, _narrow(_sums(counts, starts)[::-1]), weights)


_EMPTY = Run(np.empty(0, np.float32), np.empty(0, np.uint32), None)
