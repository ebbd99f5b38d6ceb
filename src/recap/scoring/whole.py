"""One prediction of a case from those of its images: its score, and one map of it all."""

import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from recap._files import replacing
from recap.errors import InputError
from recap.io import Case
from recap.io.slide import pitch_px
from recap.methods.base import top_count
from recap.types import FloatArray, Image, Prediction

# A slide's map keeps one value for about this many pixels of a tile per side: no detector sees
# finer.
SLIDE_MAP_STEP_PX = 16


def put_together(case: Case, images: Sequence[Prediction], share: float) -> Prediction:
    """Make one prediction of a case from those of all of its images, in their order.

    Its score is the mean over the highest `share` of its images, each branch on its own.
    """
    if not images:
        raise InputError("The case holds no images, so there is nothing to score.")
    if case.kind == "image":
        return images[0]
    if case.kind == "slide":
        whole, step = lay_out(images, case.size_hw or (0, 0))
    else:
        whole, step = _stack(images, case), 1.0
        # Views: the maps of its images are not kept twice.
        images = [replace(said, map=map) for said, map in zip(images, whole, strict=True)]
    images = [replace(said, drift=None) for said in images]  # parts that were kept have none
    prototype = [s for image in images if (s := image.score_prototype) is not None]
    memory = [s for image in images if (s := image.score_memory) is not None]
    return Prediction(
        score=top_mean([image.score for image in images], share),
        map=whole,
        score_prototype=top_mean(prototype, share) if prototype else None,
        score_memory=top_mean(memory, share) if memory else None,
        source=case.source,
        images=tuple(images),
        source_px_per_px=step,
    )


def top_mean(values: Sequence[float], share: float) -> float:
    """Average the max(1, int(share · N)) largest values.

    >>> top_mean([0.1, 0.9, 0.5, 0.7], 0.5)
    0.8
    """
    return float(np.mean(sorted(values)[-top_count(len(values), share) :]))


def tile_of(said: Prediction, tile: Image) -> Prediction:
    """Pool the map of a slide's tile, and say where it lies."""
    geometry = tile.geometry
    pooled = pool_map(said.map)
    # Tiles lie a whole number of pixels apart, up to one more than they cover. Shared out among
    # the values of a tile, that leaves no seams between the tiles, however many there are.
    step = pitch_px(tile.size_hw[0], geometry.source_px_per_px) / len(pooled)
    return replace(said, map=pooled, origin_px=geometry.origin_px, source_px_per_px=step)


def pool_map(map: FloatArray, step: int = SLIDE_MAP_STEP_PX) -> FloatArray:
    """Average each step × step block: (H, W) -> (⌈H/step⌉, ⌈W/step⌉).

    Where a side is no multiple of the step, all blocks are a little smaller.
    """
    counts_hw = (-(-side // step) for side in map.shape)
    rows, columns = (
        np.arange(count) * side // count for side, count in zip(map.shape, counts_hw, strict=True)
    )
    sums = np.add.reduceat(np.add.reduceat(map, rows, axis=0), columns, axis=1)
    counts = np.outer(np.diff([*rows, map.shape[0]]), np.diff([*columns, map.shape[1]]))
    return (sums / counts).astype(np.float32)


def lay_out(tiles: Sequence[Prediction], size_hw: tuple[int, int]) -> tuple[FloatArray, float]:
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


def _stack(images: Sequence[Prediction], case: Case) -> FloatArray:
    if len({said.map.shape for said in images}) > 1:
        raise InputError(f"{case.source}: its frames differ in size. Score them one by one.")
    return np.stack([said.map for said in images])


class Parts:
    """Predictions of a case's images by number: in memory, or on disk to be resumed."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: dict[int, Prediction] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def get(self, number: int) -> Prediction | None:
        """Return an image's prediction, if it is there and whole."""
        if self._folder is None:
            return self._memory.get(number)
        try:
            with np.load(self._file(number), allow_pickle=False) as stored:
                score, prototype, memory, row, column, step = stored["numbers"].tolist()
                map, descriptor = stored["map"], stored["descriptor"]
        # A part that a crash or a full disk left damaged is made anew.
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        return Prediction(
            score=score,
            map=map,
            score_prototype=None if np.isnan(prototype) else prototype,
            score_memory=None if np.isnan(memory) else memory,
            descriptor=descriptor if len(descriptor) else None,
            origin_px=(int(row), int(column)),
            source_px_per_px=step,
        )

    def put(self, number: int, said: Prediction) -> None:
        """Keep an image's prediction."""
        if self._folder is None:
            self._memory[number] = said
            return
        numbers = [said.score, said.score_prototype, said.score_memory]
        numbers += [*said.origin_px, said.source_px_per_px]
        with replacing(self._file(number)) as stream:
            np.savez(
                stream,
                numbers=np.array(numbers, np.float64),
                map=said.map,
                descriptor=np.empty(0, np.float32) if said.descriptor is None else said.descriptor,
            )

    def remove(self) -> None:
        """Forget everything: the case is done."""
        self._memory.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{number:06d}.npz"
