"""Images made ready in other threads, then scored: the same bits whatever their batch.

On a GPU a batch runs as one. On a processor images run side by side, each by itself on one core: a
matrix product may round differently when it has more rows or more threads, and threads that work
on one image wait for each other at every step, and for the one whose core reads a file meanwhile.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch

from recap._process import usable_cores
from recap.io.decoding import BUDGET
from recap.io.raster import TILES
from recap.io.resize import SquareResize
from recap.methods.base import Output
from recap.pipeline import side_by_side
from recap.scoring.detector import Detector
from recap.types import Image, Prediction

GPU_BATCH = 16
SCORING_BYTES = 36
"""For each pixel: the picture, its map and what is made of both, as it was measured."""
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
    height, width = image.size_hw
    BUDGET.check(height * width * SCORING_BYTES, image.source, TILES)
    resize = SquareResize(image.size_hw, detector.model.encoder.input_px)
    return Prepared(image, Image(resize.apply(image.pixels), image.source))


def score_one(detector: Detector, prepared: Prepared) -> Answer:
    """Run the model on one image that is ready."""
    return Answer(prepared.image, detector.raw_output([prepared.square]), 0)


def score_prepared(
    detector: Detector, prepared: Iterable[Prepared], batch: int = 1
) -> Generator[Answer, None, None]:
    """Answers in the order of the images: `batch` as one on a GPU, else side by side."""
    if detector.on_gpu:
        images = iter(prepared)
        while group := list(islice(images, batch)):
            output = detector.raw_output([p.square for p in group])
            yield from (Answer(p.image, output, index) for index, p in enumerate(group))
    else:
        yield from side_by_side(partial(score_one, detector), prepared, batch)


def fitting_batch(detector: Detector, wanted: int | None = None) -> int:
    """How many images to score at a time, if possible as many as wanted."""
    if detector.on_gpu:
        return wanted or GPU_BATCH
    runtime = detector.runtime
    most = torch.get_num_threads() if runtime is None else runtime.lanes
    return min(wanted or most, most)


def images_at_a_time(detector: Detector) -> int:
    """How many images to score side by side; on a GPU one after the other."""
    return 1 if detector.on_gpu else fitting_batch(detector)


@contextmanager
def one_core_each(detector: Detector) -> Iterator[None]:
    """Have every image run on one core, so that as many as there are cores run side by side.

    torch has one number of threads for the whole process: not for one that serves others too.
    """
    threads = torch.get_num_threads()
    if not detector.on_gpu:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def default_workers() -> int:
    """How many threads read, and with batches how many write, if nobody says."""
    return min(MOST_WORKERS, usable_cores())
