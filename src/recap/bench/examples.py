"""A few test images of each data set with every method's map, kept for the figures.

They are chosen by position alone, before anything is scored, so nobody picks the pretty ones.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recap._files import replacing
from recap.bench.cells import Cell
from recap.bench.kept import refusing_damage, result_file
from recap.io import read_image
from recap.io.resize import SquareResize
from recap.scoring.evaluate import square_mask
from recap.types import CLASSES, BoolArray, FloatArray, Sample

ABNORMAL, NORMAL = 4, 1


@dataclass(frozen=True)
class Example:
    """One test image at the size that metrics are computed at."""

    picture: NDArray[np.uint8]  # (S, S, 3)
    mask: BoolArray  # (S, S), empty where the data set has none


def choose_examples(samples: Sequence[Sample]) -> list[int]:
    """Positions of the images to keep: evenly spread, those with a mask first."""
    abnormal = [i for i, sample in enumerate(samples) if sample.abnormal]
    masked = [i for i in abnormal if samples[i].mask is not None]
    normal = [i for i, sample in enumerate(samples) if not sample.abnormal]
    return _spread(masked or abnormal, ABNORMAL) + _spread(normal, NORMAL)


def name_of(sample: Sample) -> str:
    """Names a test image within its data set; files of both classes may share a name."""
    return f"{CLASSES[sample.abnormal]}/{sample.path.name}"


def keep_examples(out: Path, cell: Cell, samples: Sequence[Sample], size_px: int) -> None:
    """Keep the pictures and masks, once for all cells of a data set."""
    reading = cell.settings.reading
    names = [name_of(sample) for sample in samples]
    digest = hashlib.sha256(repr((size_px, reading, names)).encode()).hexdigest()[:8]
    file = out / "examples" / f"{cell.dataset}-{digest}.npz"
    if file.exists():
        return
    pictures, masks = [], []
    for sample in samples:
        image = read_image(sample.path, reading)
        square = SquareResize(image.size_hw, size_px).apply(image.pixels)
        pictures.append((square.clip(0, 1) * 255).round().astype(np.uint8))
        masks.append(square_mask(sample, image, size_px))
    with replacing(file) as stream:
        np.savez_compressed(
            stream, names=np.array(names), pictures=np.stack(pictures), masks=np.stack(masks)
        )


def keep_maps(out: Path, cell: Cell, maps: Mapping[str, FloatArray]) -> None:
    """Keep a cell's maps beside its result."""
    with replacing(result_file(out, cell).with_suffix(".npz")) as stream:
        stacked = np.stack(list(maps.values())).astype(np.float16)
        np.savez_compressed(stream, names=np.array(list(maps)), maps=stacked)


def read_examples(out: Path, dataset: str) -> dict[str, Example]:
    """All kept images of a data set by name."""
    found: dict[str, Example] = {}
    for file in sorted((out / "examples").glob(f"{dataset}-????????.npz")):
        content = _read(file, "pictures", "masks")
        for name, picture, mask in zip(*content, strict=True):
            found[str(name)] = Example(picture, mask)
    return found


def read_maps(result: Path) -> dict[str, FloatArray]:
    """The maps kept beside a cell's result file; none if it has none."""
    file = result.with_suffix(".npz")
    if not file.exists():
        return {}
    names, maps = _read(file, "maps")
    return {str(name): kept.astype(np.float32) for name, kept in zip(names, maps, strict=True)}


def _spread(positions: list[int], count: int) -> list[int]:
    if len(positions) <= count:
        return positions
    return [positions[(2 * i + 1) * len(positions) // (2 * count)] for i in range(count)]


def _read(file: Path, *fields: str) -> list[NDArray[np.generic]]:
    with refusing_damage(file), np.load(file, allow_pickle=False) as content:
        return [content[field] for field in ("names", *fields)]
