"""How far a graph is from torch, measured on images that come with the package."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from recap.data.phantom import PHANTOMS, phantom
from recap.io import image_from_array
from recap.runtime.decisions import Decisions
from recap.scoring.arrays import Arrays
from recap.scoring.detector import Detector
from recap.types import FloatArray

ALLOWED = 1e-4
"""The largest difference of a score, a map or any other output that a float graph may have."""

_SIZES_PX = (240, 97, 400)


def check_pixels(detector: Detector) -> FloatArray:
    """Phantoms with and without a lesion at several sizes, noise and a blank: (N, 3, S, S)."""
    rng = np.random.default_rng(0)
    pictures = [
        phantom(name, rng, bool(index % 2), _SIZES_PX[index % len(_SIZES_PX)])[0]
        for index, name in enumerate(PHANTOMS)
    ]
    pictures += [
        rng.random((64, 128)).astype(np.float32),
        rng.random((300, 200, 3)).astype(np.float32),
        np.zeros((50, 50), np.float32),
    ]
    squares = [detector.preprocess(image_from_array(picture)) for picture in pictures]
    return np.stack([square.numpy() for square in squares])


def largest_differences(one: Arrays, two: Arrays) -> dict[str, float]:
    """Of every output; infinite for one that a side lacks or that is not a number."""
    first, second = one.by_name(), two.by_name()
    return {name: _difference(first.get(name), second.get(name)) for name in first | second}


@torch.inference_mode()
def decision_differences(
    decisions: Decisions, found: Sequence[Mapping[str, FloatArray]]
) -> dict[str, float]:
    """The largest difference of each decision between a graph and torch, image by image.

    Torch decides on the graph's own score: if rounding moves a score past a bound, that is no fault
    of the decision.
    """
    differences: dict[str, float] = {}
    for one in found:
        given = {name: torch.from_numpy(value) for name, value in one.items()}
        for name, value in decisions(given["score"], given.get("descriptor")).items():
            difference = _difference(value.numpy(), one.get(name))
            differences[name] = max(difference, differences.get(name, 0.0))
    return differences


def _difference(one: FloatArray | None, two: FloatArray | None) -> float:
    if one is None or two is None or one.shape != two.shape:
        return float("inf")
    largest = float(np.abs(one - two).max(initial=0))
    return largest if np.isfinite(largest) else float("inf")
