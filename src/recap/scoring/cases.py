"""Scoring a case: each of its images, one score for the whole, and one map of it all."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from recap.config import ReadingSettings
from recap.errors import InputError
from recap.io import Case
from recap.io.slide import pitch_px
from recap.methods.base import top_count
from recap.pipeline import ahead
from recap.progress import Progress, silent
from recap.scoring.detector import Detector
from recap.scoring.parts import ImageScore, Part, Parts
from recap.scoring.prepared import Answer, images_at_a_time, prepare, score_prepared
from recap.types import Decision, DomainCheck, FloatArray, in_short

# A slide's map keeps one value for about this many pixels of a tile per side: no detector sees
# finer.
SLIDE_MAP_STEP_PX = 16


@dataclass(frozen=True, eq=False)
class CasePrediction:
    """What a detector says about a case.

    `map` is (H, W) for a picture and (N, H, W) for frames and volumes, in the images' own pixels.
    A slide's map covers it from its upper left corner, `source_px_per_px` slide pixels for one
    value; what was not looked at (background) is NaN.
    """

    total: ImageScore
    images: tuple[ImageScore, ...]
    origins_px: tuple[tuple[int, int], ...]
    """Row and column where each image starts in its source: tiles of a slide; otherwise 0, 0."""
    map: FloatArray
    source_px_per_px: float = 1.0
    decision: Decision | None = None
    """Of the whole case; None without a calibration on cases of its kind."""
    domain: DomainCheck | None = None
    """Of the whole case, whatever the detector was calibrated on; None where it knows fewer than
    two images, and from other methods."""
    descriptors: FloatArray | None = None
    """(n, D): its images as the encoder sees them, unit vectors; None from other methods."""

    @property
    def score(self) -> float:
        """One score for the whole case."""
        return self.total.score

    @property
    def highest(self) -> int:
        """The number of the image with the highest score."""
        return int(np.argmax([image.score for image in self.images]))

    def __repr__(self) -> str:
        short = in_short(self.score, self.decision, self.domain, self.map)
        return f"CasePrediction({short}, images={len(self.images)})"


def score_case(
    detector: Detector,
    case: Case,
    parts: Parts | None = None,
    progress: Progress = silent,
    reading: ReadingSettings | None = None,
    batch: int | None = None,
    look_ahead: bool = False,
) -> CasePrediction:
    """Score every image of a case and put the results together.

    Images whose result is among the `parts` already are not scored again. The case's score is the
    mean over the highest share `reading.volume_top_k` of its images. `reading` is how the case was
    read, if not as the detector's settings say: a calibration holds for one way only. `batch`
    images are scored at a time, by default one on each core, or a single one on all of them;
    `look_ahead` decodes the next ones in another thread meanwhile.
    """
    parts = Parts(None) if parts is None else parts
    reading = reading or detector.card.reading
    count = len(case.images)
    batch = batch or (1 if count == 1 else images_at_a_time(detector))
    kept = {n: part for n in range(count) if (part := parts.get(n)) is not None}
    missing = [number for number in range(count) if number not in kept]
    # One thread: what a case keeps between two images is not made for several at once.
    prepared = ahead(
        lambda number: prepare(detector, case.images[number]), missing, int(look_ahead), batch + 1
    )
    progress("images", len(kept), count, case.source)
    with closing(prepared) as ready, closing(score_prepared(detector, ready, batch)) as answers:
        for number, answer in zip(missing, answers, strict=True):
            kept[number] = part_of(detector, answer, case)
            parts.put(number, kept[number])
            progress("images", len(kept), count, case.source)
    return put_together(detector, case, [kept[number] for number in range(count)], reading)


def put_together(
    detector: Detector, case: Case, kept: Sequence[Part], reading: ReadingSettings
) -> CasePrediction:
    """One prediction from the results of all images of a case, in their order."""
    scores = tuple(part.scores for part in kept)
    total = combine_scores(scores, reading.volume_top_k)
    described = [part.descriptor for part in kept if part.descriptor is not None]
    descriptors = np.stack(described) if described and len(described) == len(kept) else None
    domain = detector.check_domain(descriptors, case.kind)
    whole, step = _whole_map(kept, case)
    return CasePrediction(
        total=total,
        images=scores,
        origins_px=tuple(part.origin_px for part in kept),
        map=whole,
        source_px_per_px=step,
        decision=detector.decide(total.score, domain, case.kind, reading),
        domain=domain,
        descriptors=descriptors,
    )


def combine_scores(scores: Sequence[ImageScore], share: float) -> ImageScore:
    """One score from many: the mean of the highest share of them, each branch on its own."""
    if not scores:
        raise InputError("The case holds no images, so there is nothing to score.")
    total = top_mean([image.score for image in scores], share)
    prototype = [s for image in scores if (s := image.score_prototype) is not None]
    memory = [s for image in scores if (s := image.score_memory) is not None]
    return ImageScore(
        total,
        top_mean(prototype, share) if prototype else None,
        top_mean(memory, share) if memory else None,
    )


def top_mean(values: Sequence[float], share: float) -> float:
    """Mean of the max(1, int(share · N)) largest values."""
    return float(np.mean(sorted(values)[-top_count(len(values), share) :]))


def pool_map(map: FloatArray, step: int = SLIDE_MAP_STEP_PX) -> FloatArray:
    """Mean of each step × step block: (H, W) -> (⌈H/step⌉, ⌈W/step⌉).

    Where a side is no multiple of the step, all blocks are a little smaller.
    """
    counts_hw = (-(-side // step) for side in map.shape)
    rows, columns = (
        np.arange(count) * side // count for side, count in zip(map.shape, counts_hw, strict=True)
    )
    sums = np.add.reduceat(np.add.reduceat(map, rows, axis=0), columns, axis=1)
    counts = np.outer(np.diff([*rows, map.shape[0]]), np.diff([*columns, map.shape[1]]))
    return (sums / counts).astype(np.float32)


def lay_out(tiles: Sequence[Part], size_hw: tuple[int, int]) -> tuple[FloatArray, float]:
    """Lay the pooled maps of a slide's tiles where they belong; what has no tile stays NaN."""
    step = tiles[0].source_px_per_px
    height, width = (int(np.ceil(side / step)) for side in size_hw)
    whole = np.full((height, width), np.nan, np.float32)
    for tile in tiles:
        top, left = (round(start / step) for start in tile.origin_px)
        space = whole[top : top + tile.map.shape[0], left : left + tile.map.shape[1]]
        # Where tiles of another origin share values, the higher one counts.
        np.fmax(space, tile.map[: space.shape[0], : space.shape[1]], out=space)
    return whole, step


def part_of(detector: Detector, answer: Answer, case: Case) -> Part:
    """What is kept of an image that was scored: its own map, or the pooled one of a tile."""
    prediction = answer.prediction(detector)
    scores = ImageScore(prediction.score, prediction.score_prototype, prediction.score_memory)
    if case.kind != "slide":
        return Part(scores, prediction.map, descriptor=prediction.descriptor)
    geometry = answer.image.geometry
    pooled = pool_map(prediction.map)
    # Tiles lie a whole number of pixels apart, up to one more than they cover. Shared out among
    # the values of a tile, that leaves no seams between the tiles, however many there are.
    step = pitch_px(answer.image.size_hw[0], geometry.source_px_per_px) / len(pooled)
    return Part(scores, pooled, geometry.origin_px, step, prediction.descriptor)


def _whole_map(kept: Sequence[Part], case: Case) -> tuple[FloatArray, float]:
    """One map of all images, and how many source pixels one of its values stands for."""
    if case.kind == "slide":
        return lay_out(kept, case.size_hw or (0, 0))
    return (kept[0].map if case.kind == "image" else _stack([p.map for p in kept], case)), 1.0


def _stack(maps: Iterable[FloatArray], case: Case) -> FloatArray:
    maps = list(maps)
    if len({map.shape for map in maps}) > 1:
        raise InputError(f"{case.source}: its frames differ in size. Score them one by one.")
    return np.stack(maps)
