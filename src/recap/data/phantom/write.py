"""Phantom domains in the benchmark's folder layout."""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image as PillowImage

from recap.data.benchmark import Domain, read_domain
from recap.data.phantom.organs import brain, chest, liver
from recap.data.phantom.tissues import histology, oct2017, resc
from recap.errors import InputError, SettingsError
from recap.progress import Progress, silent
from recap.types import BoolArray, FloatArray

Draw = Callable[[Generator, int, bool], tuple[FloatArray, BoolArray]]

PHANTOMS: dict[str, Draw] = {
    "Brain": brain,
    "Liver": liver,
    "Retina_RESC": resc,
    "Retina_OCT2017": oct2017,
    "Chest": chest,
    "Histopathology": histology,
}
# The benchmark has masks for these only.
WITH_MASKS = ("Brain", "Liver", "Retina_RESC")
_PARTIAL = ".phantoms.partial"


def phantom(
    domain_name: str, rng: Generator, abnormal: bool, size_px: int = 240
) -> tuple[NDArray[np.uint8], BoolArray]:
    """Draw one image, grey (S, S) or RGB (S, S, 3), and the mask of its lesions."""
    if domain_name not in PHANTOMS:
        raise SettingsError(
            f"No phantom is called {domain_name!r}. There are {', '.join(PHANTOMS)}."
        )
    pixels, mask = PHANTOMS[domain_name](rng, size_px, abnormal)
    return np.rint(pixels * 255).astype(np.uint8), mask


def write_phantoms(
    root: Path,
    *,
    seed: int = 0,
    pool: int = 8,
    test: int = 8,
    size_px: int = 240,
    domains: Sequence[str] | None = None,
    progress: Progress = silent,
) -> list[Domain]:
    """Write phantom domains under `root`; `pool` and `test` count the images of each class.

    Each image depends on the seed and its own place only: more images, or other domains,
    leave those already drawn as they are. Domains appear together when all are whole, so that a
    run that was stopped can be repeated.
    """
    if min(pool, test) < 1 or size_px < 32:
        raise SettingsError(
            f"Phantoms need at least 1 image per class and 32 px, "
            f"not pool={pool}, test={test}, size_px={size_px}."
        )
    names = list(PHANTOMS if domains is None else domains)
    folders = [Path(root) / f"{name}_AD" for name in names]
    for folder in folders:
        if folder.exists():
            raise InputError(f"{folder}: exists already. Remove it, or write to another folder.")
    partial = Path(root) / _PARTIAL
    _remove(partial)  # of a run that was killed
    try:
        images = list(_images(folders, {"valid": pool, "test": test}))
        for number, (place, abnormal) in enumerate(images):
            progress("draw", number, len(images), str(place))
            _write_one(partial / place.parent, place.name, abnormal, seed, size_px)
        progress("draw", len(images), len(images), "")
        for folder in folders:
            (partial / folder.name).rename(folder)
    finally:
        _remove(partial)
    return [read_domain(folder) for folder in folders]


def _remove(partial: Path) -> None:
    if partial.exists():
        shutil.rmtree(partial)


def _images(
    folders: Sequence[Path], counts: Mapping[str, int]
) -> Iterator[tuple[PurePosixPath, bool]]:
    """Domain, split and file name of all images, and whether they are abnormal."""
    for folder in folders:
        for split, count in counts.items():
            for index in range(count):
                for abnormal in (False, True):
                    yield PurePosixPath(folder.name, split, f"{split}_{index:03d}.png"), abnormal


def _write_one(split: Path, file: str, abnormal: bool, seed: int, size_px: int) -> None:
    name = split.parent.name.removesuffix("_AD")
    place = f"{seed}/{name}/{file}/{abnormal}".encode()
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(place).digest()[:16], "big"))
    pixels, mask = phantom(name, rng, abnormal, size_px)
    label = split / ("Ungood" if abnormal else "good")
    _save(pixels, label / "img" / file)
    if abnormal and name in WITH_MASKS:
        _save(mask.astype(np.uint8) * 255, label / "anomaly_mask" / file)


def _save(pixels: NDArray[np.uint8], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PillowImage.fromarray(pixels).save(path)
