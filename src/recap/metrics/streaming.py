"""Metrics gathered image by image or worker by worker: update, merge, compute."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recap.errors import SettingsError
from recap.metrics.curve import Ranks, f1_peak, precision_sum, twice_won, weighted_area
from recap.metrics.functional import (
    auroc,
    average_precision,
    expected_calibration_error,
    f1_max,
    fpr_at_tpr,
    sensitivity_at_specificity,
)
from recap.metrics.inputs import Maps, finite, images, need_both_classes, scores_and_labels
from recap.metrics.regions import family_area, family_thresholds, region_weights
from recap.metrics.tally import Run, Tally, pieces
from recap.types import BoolArray

AUPRO_FPR_LIMIT = 0.3
LEAST_MEMORY_BYTES = 1 << 12


def _calibration_error(scores: NDArray[np.float64], labels: BoolArray) -> float | None:
    """The calibration error of scores that may be probabilities."""
    probable = bool(np.all((scores >= 0) & (scores <= 1)))
    return expected_calibration_error(scores, labels) if probable else None


IMAGE_METRICS: dict[str, Callable[[NDArray[np.float64], BoolArray], float | None]] = {
    "auroc": auroc,
    "f1_max": f1_max,
    "ap": average_precision,
    "sensitivity_at_95_specificity": partial(sensitivity_at_specificity, specificity=0.95),
    "fpr_at_95_tpr": partial(fpr_at_tpr, tpr=0.95),
    "ece": _calibration_error,
}
"""Every metric of image scores: (scores, labels) -> a fraction, by the name of its column."""


class ImageMetrics:
    """Metrics of image scores; the scores are kept, so that merging changes nothing."""

    def __init__(self) -> None:
        self._scores: list[NDArray[Any]] = []
        self._labels: list[BoolArray] = []

    def update(self, scores: ArrayLike, labels: ArrayLike) -> None:
        """Add the score and label of one image, or those of several."""
        values, positive = scores_and_labels(scores, labels)
        self._scores.append(values.astype(np.float64))
        self._labels.append(positive.copy())

    def merge(self, other: "ImageMetrics") -> None:
        """Add all images of another worker."""
        self._scores = self._scores + other._scores
        self._labels = self._labels + other._labels

    @property
    def scores(self) -> NDArray[np.float64]:
        """All scores in the order they came."""
        return np.concatenate([np.empty(0), *self._scores])

    @property
    def labels(self) -> BoolArray:
        """All labels in the order they came."""
        return np.concatenate([np.empty(0, np.bool_), *self._labels])

    def compute(self) -> dict[str, float | None]:
        """All image metrics; one that means nothing for these scores is None."""
        return {name: metric(self.scores, self.labels) for name, metric in IMAGE_METRICS.items()}


class PixelMetrics:
    """Metrics of anomaly maps, read as float32, in bounded memory.

    Normal and abnormal pixels get `memory_bytes` each, and half of it again for a moment. The
    result is exact until one kind has more distinct values than fit (67 and 33 million for the
    default). From then on `error_bound` says by how much a metric can be off; with the default it
    grows by at most 1.2e-7 for every further 67 million normal pixels and by 4.8e-7 for every 33
    million abnormal ones, and so stays below 1e-5 for billions. Only `pro`, which jumps where the
    FPR of a step crosses 0.3, has no bound when that FPR is within the error of 0.3.
    """

    def __init__(self, memory_bytes: int = 1 << 30) -> None:
        if memory_bytes < LEAST_MEMORY_BYTES:
            raise SettingsError(
                f"memory_bytes must be at least {LEAST_MEMORY_BYTES}, not {memory_bytes}."
            )
        self._normal = Tally(weighted=False, memory_bytes=memory_bytes)
        self._abnormal = Tally(weighted=True, memory_bytes=memory_bytes)
        self._regions = 0

    def update(self, maps: Maps, masks: Maps) -> None:
        """Add one map (H, W) with its mask, or several; a normal image has an empty mask."""
        # All are read before one is added, so that a bad map among them changes nothing.
        with np.errstate(over="ignore"):
            read = [
                (finite(map_.astype(np.float32), "pixels, read as float32,"), mask)
                for map_, mask in images(maps, masks)
            ]
        for values, mask in read:
            self._normal.add(values[~mask])
            if mask.any():
                weights, count = region_weights(mask)
                self._abnormal.add(values[mask], weights)
                self._regions += count

    def merge(self, other: "PixelMetrics") -> None:
        """Add all images of another worker."""
        self._normal.merge(other._normal)
        self._abnormal.merge(other._abnormal)
        self._regions += other._regions

    @property
    def error_bound(self) -> float:
        """The distance that a metric can have from its exact value; 0 means exact."""
        return self._normal.error + 2 * self._abnormal.error

    def compute(self) -> dict[str, float | None]:
        """All pixel metrics; `pro` is None where the family's form is undefined."""
        n_positive, n_negative = self._abnormal.size, self._normal.size
        need_both_classes(n_positive, n_negative, "pixel")
        won, precision, f1, area = 0, 0.0, 0.0, 0.0
        hits_above = above = 0
        for positives, negatives in pieces(self._abnormal.runs(), self._normal.runs()):
            ranks = _rank_piece(positives, negatives, above, n_positive, n_negative, hits_above)
            won += twice_won(ranks)
            precision += precision_sum(ranks)
            f1 = max(f1, f1_peak(ranks))
            if positives.weights is not None:
                area += weighted_area(ranks, positives.weights[::-1], AUPRO_FPR_LIMIT)
            hits_above += int(positives.counts.sum())
            above += int(negatives.counts.sum())
        return {
            "auroc": won / (2 * n_positive * n_negative),
            "f1_max": f1,
            "ap": precision / n_positive,
            "pro": self._family_pro(),
            f"aupro_{AUPRO_FPR_LIMIT}": area / self._regions / AUPRO_FPR_LIMIT,
        }

    def _family_pro(self) -> float | None:
        runs = [
            run.values for run in self._normal.runs() + self._abnormal.runs() if run.values.size
        ]
        low, high = min(run[0] for run in runs), max(run[-1] for run in runs)
        thresholds = family_thresholds(low, high)
        fprs = self._normal.above(thresholds) / self._normal.size
        return family_area(fprs, self._abnormal.above(thresholds) / self._regions)


def _rank_piece(
    positives: Run, negatives: Run, above: int, n_positive: int, n_negative: int, hits_above: int
) -> Ranks:
    """Ranks of one range of values, with what lies above it."""
    counted = np.concatenate([[0], np.cumsum(negatives.counts, dtype=np.int64)])
    below = counted[np.searchsorted(negatives.values, positives.values, side="left")]
    not_above = counted[np.searchsorted(negatives.values, positives.values, side="right")]
    return Ranks(
        hits=positives.counts[::-1].astype(np.int64),
        tied=(not_above - below)[::-1],
        above=(above + counted[-1] - not_above)[::-1],
        n_positive=n_positive,
        n_negative=n_negative,
        hits_above=hits_above,
    )
