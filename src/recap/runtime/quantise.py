"""int8: weights and activations in eight bits, their ranges taken from calibration images."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from recap.data.cases import find_cases
from recap.errors import InputError
from recap.extras import require
from recap.runtime.convert import quiet
from recap.scoring.detector import Detector
from recap.types import FloatArray

MOST_IMAGES = 128
_FEWEST = 4


def calibration_pixels(detector: Detector, folder: Path) -> FloatArray:
    """Images of a folder, evenly drawn, as the graph takes them: (N, 3, S, S)."""
    reading = detector.card.settings.reading
    with tempfile.TemporaryDirectory(prefix="recap-") as scratch:
        cases = [found.open(reading) for found in find_cases([folder], Path(scratch)).cases]
        places = [(case, number) for case in cases for number in range(len(case.images))]
        step = -(-len(places) // MOST_IMAGES)
        chosen = places[:: max(1, step)]
        squares = [detector.preprocess(case.images[n]).numpy() for case, n in chosen]
    if len(squares) < _FEWEST:
        raise InputError(
            f"{folder} has {len(squares)} images; int8 needs {_FEWEST} or more to find the range "
            "of its numbers (some 100 are better). Give another --calibration."
        )
    return np.stack(squares)


def quantise(model: Any, pixels: FloatArray) -> Any:
    """An OpenVINO model in int8, quantised after training."""
    nncf = require("nncf", "openvino")
    with quiet():
        return nncf.quantize(
            model,
            nncf.Dataset([image[None] for image in pixels]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(pixels),
        )
