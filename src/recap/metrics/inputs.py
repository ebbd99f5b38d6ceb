"""The demands of every metric on its input: finite numbers, labels of 0 and 1, both classes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recap.errors import InputError
from recap.types import BoolArray

Maps = NDArray[Any] | Sequence[ArrayLike]


def scores_and_labels(scores: ArrayLike, labels: ArrayLike) -> tuple[NDArray[Any], BoolArray]:
    """Flat floating scores and boolean labels, or an error that says what does not fit."""
    values, marks = np.asarray(scores), np.asarray(labels)
    if values.shape != marks.shape:
        raise InputError(
            f"Scores have shape {values.shape} but labels have {marks.shape}. "
            "Give one label per score."
        )
    return finite(values, "scores").ravel(), as_bool(marks).ravel()


def both_classes(scores: ArrayLike, labels: ArrayLike) -> tuple[NDArray[Any], BoolArray]:
    """Scores and labels of a metric that compares normal with abnormal."""
    values, positive = scores_and_labels(scores, labels)
    n_positive = int(np.count_nonzero(positive))
    need_both_classes(n_positive, positive.size - n_positive)
    return values, positive


def images(maps: Maps, masks: Maps) -> Iterator[tuple[NDArray[Any], BoolArray]]:
    """Each map with its mask; a single pair of 2-D arrays is one image."""
    first: Any = maps[0] if len(maps) else None
    if np.ndim(first) == 1:
        maps, masks = np.asarray(maps)[None], np.asarray(masks)[None]
    if len(maps) != len(masks):
        raise InputError(f"There are {len(maps)} maps but {len(masks)} masks. Give one for each.")
    for index, (map_, mask) in enumerate(zip(maps, masks, strict=True)):
        yield image(map_, mask, f"map {index}")


def image(map_: ArrayLike, mask: ArrayLike, name: str) -> tuple[NDArray[Any], BoolArray]:
    """One map and its mask, both (H, W)."""
    values, marks = np.asarray(map_), np.asarray(mask)
    if values.ndim != 2 or values.shape != marks.shape:
        raise InputError(
            f"{name.capitalize()} has shape {values.shape} and its mask {marks.shape}. "
            "Both must be (height, width) and alike: resize the mask to the map."
        )
    return finite(values, f"pixels of {name}"), as_bool(marks)


def finite(values: NDArray[Any], what: str) -> NDArray[Any]:
    """Floating numbers without NaN and infinity; integers become float64."""
    if values.dtype.kind not in "fiub":
        raise InputError(
            f"The {what} must be real numbers, but they have dtype {values.dtype}. "
            "Convert them to float32."
        )
    if values.dtype.kind != "f":
        return values.astype(np.float64)
    broken = values.size - int(np.count_nonzero(np.isfinite(values)))
    if broken:
        raise InputError(
            f"{broken} of {values.size} {what} are NaN or infinite. "
            "Find the images that gave them before evaluating."
        )
    return values


def as_bool(marks: NDArray[Any]) -> BoolArray:
    """Labels or a mask of 0 and 1 as booleans."""
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


def need_both_classes(n_positive: int, n_negative: int, unit: str = "sample") -> None:
    """Refuse a ranking in which there is nothing to compare."""
    if not n_positive or not n_negative:
        missing = [f"label {z}" for z, n in ((0, n_negative), (1, n_positive)) if not n]
        raise InputError(
            f"No {unit} has {' or '.join(missing)} (0 = normal: {n_negative}, 1 = abnormal: "
            f"{n_positive}). This metric needs both classes: add {unit}s of the missing one."
        )
