"""The results of a case's images, kept until the case is whole: in memory, or resumable on disk."""

import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recap._files import replacing
from recap.types import FloatArray


@dataclass(frozen=True)
class ImageScore:
    """The scores of one slice, frame or tile; None for a branch that the detector lacks."""

    score: float
    score_prototype: float | None
    score_memory: float | None


@dataclass(frozen=True, eq=False)
class Part:
    """One image's result: its scores, its map, and where it lies in its source."""

    scores: ImageScore
    map: FloatArray
    origin_px: tuple[int, int] = (0, 0)
    source_px_per_px: float = 1.0
    descriptor: FloatArray | None = None


class Parts:
    """Results by image number. Without a folder they live in memory."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: dict[int, Part] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def get(self, number: int) -> Part | None:
        """An image's result, if it is there and whole."""
        if self._folder is None:
            return self._memory.get(number)
        try:
            with np.load(self._file(number), allow_pickle=False) as stored:
                score, prototype, memory, row, column, step = stored["numbers"].tolist()
                map, descriptor = stored["map"], stored["descriptor"]
        # A part that a crash or a full disk left damaged is made anew.
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        scores = ImageScore(score, _or_none(prototype), _or_none(memory))
        described = descriptor if len(descriptor) else None
        return Part(scores, map, (int(row), int(column)), step, described)

    def put(self, number: int, part: Part) -> None:
        """Keep an image's result."""
        if self._folder is None:
            self._memory[number] = part
            return
        scores = part.scores
        numbers = [scores.score, scores.score_prototype, scores.score_memory]
        numbers += [*part.origin_px, part.source_px_per_px]
        with replacing(self._file(number)) as stream:
            np.savez(
                stream,
                numbers=np.array(numbers, np.float64),
                map=part.map,
                descriptor=np.empty(0, np.float32) if part.descriptor is None else part.descriptor,
            )

    def remove(self) -> None:
        """Forget everything: the case is done."""
        self._memory.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{number:06d}.npz"


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value
