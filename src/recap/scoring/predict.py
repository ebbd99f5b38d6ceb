"""The one way in which images are scored: `predict`.

    for source, case, said in predict(detector, sources):
        ...                     # said is a Prediction, or this case's error

Cases are read ahead by other threads. Their images then go through the model one after the other,
whichever case they are of: on a processor side by side, each by itself on one core, since a matrix
product may round differently when it has more rows or more threads, and threads that work on one
image wait for each other at every step; on a GPU in batches. Cases come back in their order. An
error is that of its case and travels with it.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import torch

from recap._process import usable_cores
from recap.config import ReadingSettings
from recap.data.cases import SCORING_BYTES
from recap.errors import InputError, RecapError, require
from recap.io import Case
from recap.io.case import CaseKind
from recap.io.decoding import BUDGET
from recap.io.raster import TILES
from recap.io.resize import SquareResize
from recap.methods.base import Output, Scorer
from recap.pipeline import ahead, side_by_side
from recap.progress import Progress, silent
from recap.scoring.arrays import Runtime
from recap.scoring.bundle import Card
from recap.scoring.whole import Parts, put_together, tile_of
from recap.types import Image, Prediction

GPU_BATCH = 16
MOST_WORKERS = 4
"""Reading and writing take a fraction of the encoder's time: more threads would idle."""
Frame = Literal["source", "square"]
_REFUSALS = ("can't allocate memory", "not enough memory")
"""What torch says of the machine's own memory; it has no exception of its own for that."""


class Predictor(Protocol):
    """What scores, as far as `predict` is concerned: a `Detector`."""

    card: Card
    model: Scorer
    runtime: Runtime | None

    @property
    def on_gpu(self) -> bool:
        """Whether batches run as one."""

    def raw_output(self, images: list[Image]) -> Output:
        """Run the model on squares."""

    def prediction(self, output: Output, index: int, image: Image) -> Prediction:
        """Read what an output says about one of its images."""

    def decided(
        self, said: Prediction, kind: CaseKind = ..., reading: ReadingSettings | None = ...
    ) -> Prediction:
        """Add what to make of a score."""


class Source(Protocol):
    """Something that can be opened as a case, and read when its turn comes."""

    @property
    def name(self) -> str:
        """What to call it while it is scored."""

    @property
    def read_alone(self) -> bool:
        """Whether several of its kind would take too much memory at once."""

    def open(self, reading: ReadingSettings) -> Case:
        """Open it; whatever is wrong with it is a RecapError."""


S = TypeVar("S", bound=Source)
Said = Prediction | RecapError


class Scored(NamedTuple, Generic[S]):
    """A case and what came of it."""

    source: S
    case: Case | None
    """None if it could not be opened."""
    said: Said

    def or_raise(self) -> tuple[Case, Prediction]:
        """Return the case with its prediction, or raise its error."""
        if isinstance(self.said, RecapError):
            raise self.said
        assert self.case is not None
        return self.case, self.said


@dataclass(frozen=True, eq=False)
class Opened:
    """A case that is open already."""

    case: Case
    read_alone = False

    @property
    def name(self) -> str:
        """Where it came from."""
        return self.case.source

    def open(self, reading: ReadingSettings) -> Case:
        """Return the case."""
        return self.case


def predict(
    detector: Predictor,
    sources: Iterable[S],
    *,
    reading: ReadingSettings | None = None,
    wanted: Callable[[S], bool] = lambda source: True,
    parts: Callable[[S], Parts] = lambda source: Parts(None),
    workers: int = 0,
    batch: int | None = None,
    frame: Frame = "source",
    progress: Progress = silent,
    stage: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext(),
) -> Generator[Scored[S], None, None]:
    """Score cases, each as soon as it can be; none of it depends on which others there are.

    Args:
        detector: what scores.
        sources: the cases, opened one by one. Nothing is read of those that are not `wanted`,
            which is asked in the threads that read.
        reading: how files are read, if not as the detector has it: a calibration holds for one
            way only.
        parts: where the images of a case are kept until it is whole, so that a case of many
            that was interrupted goes on where it stopped.
        workers: threads that read ahead; without any, nothing is read before it is asked for.
        batch: how many images at a time: side by side on a processor, one batch on a GPU, where
            last digits may depend on it. By default one on each core, and singly on a GPU.
        frame: whether maps are in the source's own pixels, or in the encoder's square.
        progress: told of the stage `images` of cases that have many.
        stage: times the stages open, decode, score and decide.

    Returns:
        Each source that was wanted with its case, and a prediction or an error.
    """
    reading = reading or detector.card.reading
    batch = batch or images_at_a_time(detector)
    run = _Run(detector, reading, wanted, parts, bool(workers), batch, frame, progress, stage)
    opened = ahead(run.open, sources, workers, workers + batch)
    with closing(opened), closing(run.images(opened)) as images:
        score = run.in_batches if detector.on_gpu else run.side_by_side
        with closing(score(images)) as scored:
            yield from run.put_together(scored)


def fitting_batch(detector: Predictor, wanted: int | None = None) -> int:
    """Find how many images to score at a time, if possible as many as wanted."""
    if detector.on_gpu:
        return wanted or GPU_BATCH
    runtime = detector.runtime
    most = torch.get_num_threads() if runtime is None else runtime.lanes
    return min(wanted or most, most)


def images_at_a_time(detector: Predictor) -> int:
    """Find how many images to score side by side; on a GPU one after the other."""
    return 1 if detector.on_gpu else fitting_batch(detector)


def default_workers() -> int:
    """Find how many threads read, and with batches how many write, if nobody says."""
    return min(MOST_WORKERS, usable_cores())


@contextmanager
def one_core_each(detector: Predictor) -> Iterator[None]:
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


@contextmanager
def refusing_too_large() -> Iterator[None]:
    """Report running out of memory as this case's error."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _too_large() from error
    except RuntimeError as error:
        if not any(refusal in str(error) for refusal in _REFUSALS):
            raise
        raise _too_large() from error


def _too_large() -> InputError:
    return InputError(
        "This case takes more memory than there is. Close other programs, crop it, or give "
        "--device cpu if it is a GPU's memory. Then run again: it is tried anew.",
        code="no_memory",
    )


@dataclass(eq=False)
class _Work(Generic[S]):
    """A case on its way, and what is known of it so far."""

    source: S
    case: Case | None = None
    picture: "_Image[S] | None" = None
    """Of a picture, the image itself: decoded once, also for drawing."""
    parts: Parts = field(default_factory=lambda: Parts(None))
    done: dict[int, Prediction] = field(default_factory=dict)
    error: RecapError | None = None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Take what goes wrong as an error of this case; the first one counts."""
        try:
            with refusing_too_large():
                yield
        except RecapError as error:
            self.error = self.error or error


@dataclass(eq=False)
class _Image(Generic[S]):
    """One image of a case on its way; without pixels it is the end of a case of many."""

    work: _Work[S]
    number: int = -1
    image: Image | None = None
    square: Image | None = None
    """Stretched to the encoder's square."""
    said: Prediction | None = None

    @property
    def ends_its_case(self) -> bool:
        """Whether all of its case has come by now."""
        return self.image is None or self.work.picture is self


@dataclass(frozen=True, eq=False)
class _Run(Generic[S]):
    """The steps of `predict`, each a stream that the next one pulls from."""

    detector: Predictor
    reading: ReadingSettings
    wanted: Callable[[S], bool]
    parts: Callable[[S], Parts]
    look_ahead: bool
    batch: int
    frame: Frame
    progress: Progress
    stage: Callable[[str], AbstractContextManager[None]]

    def open(self, source: S) -> _Work[S] | None:
        """Open a case in a thread that reads, unless it is better read alone."""
        work = _Work(source)
        with work.errors():
            if not self.wanted(source):
                return None
            if not source.read_alone:
                self._open(work)
        return work

    def images(self, opened: Iterable[_Work[S] | None]) -> Generator[_Image[S], None, None]:
        """All images of all cases that are still to be scored, ready for the model."""
        for work in opened:
            if work is None:
                continue
            if work.error is None and work.case is None:
                with work.errors():
                    self._open(work)
            if work.picture is not None:
                yield work.picture
                continue
            if work.error is None:
                yield from self._of_many(work)
            yield _Image(work)

    def side_by_side(self, images: Iterable[_Image[S]]) -> Generator[_Image[S], None, None]:
        """Score images in threads, each by itself."""
        return side_by_side(self._score_one, images, self.batch)

    def in_batches(self, images: Iterable[_Image[S]]) -> Generator[_Image[S], None, None]:
        """Score images as one, pictures together and those of a case of many together."""
        waiting: list[_Image[S]] = []
        for image in images:
            of_many = image.work.picture is None and image.work.case is not None
            if waiting and of_many and image.work is not waiting[-1].work:
                yield from self._score_batch(waiting)
                waiting = []
            waiting.append(image)
            full = sum(one.square is not None for one in waiting) == self.batch
            if full or (of_many and image.ends_its_case):
                yield from self._score_batch(waiting)
                waiting = []
        yield from self._score_batch(waiting)

    def put_together(self, scored: Iterable[_Image[S]]) -> Generator[Scored[S], None, None]:
        """Gather the images of each case, and give it back as soon as they are all there."""
        for image in scored:
            work = image.work
            if image.said is not None:
                work.done[image.number] = image.said
                if work.picture is None:
                    with work.errors():
                        work.parts.put(image.number, image.said)
                    self._count(work)
            if image.ends_its_case:
                yield Scored(work.source, work.case, self._whole(work))
            del image, work  # a volume is dropped before the next one comes

    def _open(self, work: _Work[S]) -> None:
        """Open a case; a picture is decoded once, for the model and to be drawn."""
        with self.stage("open"):
            case = work.case = work.source.open(self.reading)
        if case.grid is not None:
            require("nibabel", "volumes")  # told before the work rather than after it
        if case.kind == "image":
            picture = self._decode(work, 0)
            assert picture.image is not None
            work.picture, work.case = picture, replace(case, images=[picture.image])

    def _decode(self, work: _Work[S], number: int) -> _Image[S]:
        """Do the part of scoring that needs no model."""
        assert work.case is not None
        with self.stage("decode"):
            image = work.case.images[number]
            height, width = image.size_hw
            BUDGET.check(height * width * SCORING_BYTES, image.source, TILES)
            resize = SquareResize(image.size_hw, self.detector.model.encoder.input_px)
            return _Image(work, number, image, Image(resize.apply(image.pixels), image.source))

    def _of_many(self, work: _Work[S]) -> Generator[_Image[S], None, None]:
        """The images of a case that are not among its parts, until one of them is an error."""
        assert work.case is not None
        count = len(work.case.images)
        with work.errors():
            work.parts = self.parts(work.source)
            work.done |= {n: part for n in range(count) if (part := work.parts.get(n)) is not None}
        missing = [number for number in range(count) if number not in work.done]
        self._count(work)

        def decode(number: int) -> _Image[S]:
            with work.errors():
                return self._decode(work, number)
            return _Image(work)

        # One thread: what a case keeps between two images is not made for several at once.
        with closing(ahead(decode, missing, int(self.look_ahead), self.batch + 1)) as decoded:
            for image in decoded:
                if work.error is not None:
                    return
                yield image

    def _score_one(self, image: _Image[S]) -> _Image[S]:
        if image.square is not None and image.work.error is None:
            with image.work.errors():
                with self.stage("score"):
                    output = self.detector.raw_output([image.square])
                self._take(image, output, 0)
        return image

    def _score_batch(self, group: list[_Image[S]]) -> list[_Image[S]]:
        asked = [image for image in group if image.square is not None]
        squares = [image.square for image in asked if image.square is not None]
        try:
            if squares:
                with self.stage("score"), refusing_too_large():
                    output = self.detector.raw_output(squares)
                for index, image in enumerate(asked):
                    with image.work.errors():
                        self._take(image, output, index)
        except RecapError:  # one by one: the others of a batch have no part in it
            for image in asked:
                self._score_one(image)
        return group

    def _take(self, image: _Image[S], output: Output, index: int) -> None:
        """Keep what the model said of an image; the image itself only to draw a picture."""
        assert image.image is not None
        assert image.work.case is not None
        with self.stage("decide"):
            if self.frame == "square":
                said = self.detector.prediction(output, index, image.square or image.image)
            else:
                said = self.detector.prediction(output, index, image.image)
            if image.work.case.kind == "slide":
                said = tile_of(said, image.image)
        image.said, image.square = said, None

    def _count(self, work: _Work[S]) -> None:
        assert work.case is not None
        self.progress("images", len(work.done), len(work.case.images), work.source.name)

    def _whole(self, work: _Work[S]) -> Said:
        """One prediction of a case, decided upon as one of its kind."""
        with work.errors():
            if work.error is None and work.case is not None:
                said = [work.done[number] for number in range(len(work.case.images))]
                with self.stage("decide"):
                    whole = put_together(work.case, said, self.reading.volume_top_k)
                    return self.detector.decided(whole, work.case.kind, self.reading)
        assert work.error is not None
        return work.error
