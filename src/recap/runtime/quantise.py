"""int8: weights and activations in eight bits, their ranges taken from calibration images."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from recap._files import scratch_folder
from recap.data.cases import Found, find_cases
from recap.errors import InputError, counted, require
from recap.runtime.quiet import quiet
from recap.scoring.detector import Detector
from recap.types import FloatArray

MOST_IMAGES = 128
_FEWEST = 4
_SCOPES = "pkg.torch.onnx.name_scopes"


def calibration_pixels(detector: Detector, folder: Path) -> FloatArray:
    """Images of a folder, evenly drawn, as the graph takes them: (N, 3, S, S)."""
    reading = detector.card.reading
    with scratch_folder() as scratch:
        cases = find_cases([folder], scratch).cases
        # Never two cases at once: a folder of pictures need not fit into memory.
        places = [(found, n) for found in cases for n in range(len(found.open(reading).images))]
        step = -(-len(places) // MOST_IMAGES)
        squares = list(_squares(detector, places[:: max(1, step)]))
    if len(squares) < _FEWEST:
        raise InputError(
            f"{folder} has {counted(len(squares), 'image')}; int8 needs {_FEWEST} or more to find "
            "the range of its numbers (some 100 are better). Give another --calibration."
        )
    return np.stack(squares)


def _squares(detector: Detector, places: Sequence[tuple[Found, int]]) -> Iterator[FloatArray]:
    """The images at these places, those of a case one after the other."""
    for _, own in groupby(places, lambda place: place[0].name):
        chosen = list(own)
        case = chosen[0][0].open(detector.card.reading)
        yield from (detector.preprocess(case.images[n]).numpy() for _, n in chosen)
        del case  # before the next is opened


def quantise(model: Any, onnx_file: Path, pixels: FloatArray) -> Any:
    """An OpenVINO model with its encoder in int8, quantised after training.

    Adapters, prototypes and memory stay in float32: they are a small part of the time, and cosines
    that a scale of 100 magnifies are where eight bits hurt.
    """
    nncf = require("nncf", "openvino")
    head = _outside_encoder(onnx_file)
    names = [operation.get_friendly_name() for operation in model.get_ops()]
    kept = [name for name in names if name.partition("/")[0] in head]
    with quiet():
        return nncf.quantize(
            model,
            nncf.Dataset([image[None] for image in pixels]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(pixels),
            ignored_scope=nncf.IgnoredScope(names=kept, validate=False),
        )


def _outside_encoder(onnx_file: Path) -> set[str]:
    """Names of the operations that the exporter saw in no module of the encoder."""
    onnx = require("onnx", "onnx")
    graph = onnx.load(str(onnx_file), load_external_data=False).graph
    scopes = {
        node.name: {entry.key: entry.value for entry in node.metadata_props}.get(_SCOPES, "")
        for node in graph.node
    }
    return {name for name, scope in scopes.items() if "'model.encoder." not in scope}
