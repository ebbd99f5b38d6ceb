"""Images made ready in other threads, then scored: the same bits whatever their batch.

On a processor every image runs by itself: a matrix product may round differently when there are
more rows to it, and larger batches gain nothing there. On a GPU a batch runs as one.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from recap.io.resize import SquareResize
from recap.model.scorer import Output
from recap.scoring.detector import Detector
from recap.types import Image, Prediction

GPU_BATCH = 16
MOST_WORKERS = 4
"""Reading and writing take a fraction of the encoder's time: more threads would idle."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """An image as it was read, and as the encoder's square."""

    image: Image
    square: Image


@dataclass(frozen=True, eq=False)
class Answer:
    """One image of a model's output, still in the square's frame."""

    image: Image
    output: Output
    index: int

    def prediction(self, detector: Detector) -> Prediction:
        """What it says in the image's own frame."""
        return detector.prediction(self.output, self.index, self.image)


def prepare(detector: Detector, image: Image) -> Prepared:
    """Do the part of scoring that needs no model."""
    resize = SquareResize(image.size_hw, detector.model.encoder.input_px)
    return Prepared(image, Image(resize.apply(image.pixels), image.source))


def score_prepared(detector: Detector, prepared: Sequence[Prepared]) -> list[Answer]:
    """Run the model on images that are ready."""
    if not detector.on_gpu:
        return [Answer(p.image, detector.raw_output([p.square]), 0) for p in prepared]
    output = detector.raw_output([p.square for p in prepared])
    return [Answer(p.image, output, index) for index, p in enumerate(prepared)]


def default_batch(detector: Detector) -> int:
    """How many images are scored together if nobody says."""
    return GPU_BATCH if detector.on_gpu else 1


def default_workers() -> int:
    """How many threads read, and how many write, if nobody says."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    return min(MOST_WORKERS, cores)
