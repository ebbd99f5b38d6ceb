"""Metrics of a detector on a domain's test split, normal images included."""

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from recap._download import sha256_of
from recap.config import ReadingSettings
from recap.data.benchmark import Domain
from recap.data.supports import Exclusions
from recap.errors import InputError
from recap.io import Case, read_image
from recap.io.raster import read_mask_of
from recap.io.resize import SquareResize
from recap.metrics import ImageMetrics, PixelMetrics
from recap.progress import Progress, silent
from recap.scoring.detector import Detector
from recap.scoring.predict import images_at_a_time, one_core_each, predict
from recap.types import CLASSES, BoolArray, FloatArray, Image, Prediction, Sample

MEASURED_PX = 240
"""Side of maps and masks in pixel metrics: methods whose inputs differ are measured alike."""


def evaluate(
    detector: Detector,
    domain: Domain,
    progress: Progress = silent,
    exclude: Exclusions | None = None,
) -> dict[str, Any]:
    """All image metrics, and all pixel metrics where there are masks; fractions, not per cent.

    Maps and masks are compared at 240 × 240, as the benchmark does. `pixel` is None for a domain
    without masks; where some abnormal images have one, the others are left out of it and counted.
    Images that `exclude` lists are left out of everything and counted. `empty_masks` names masks
    that mark nothing; where all do, `pixel` is None too. `domain_is_a_source` says that a zero-shot
    detector was fitted on this domain, by its name.
    """
    everything = domain.test()
    need_both_classes(everything, domain)
    samples = everything if exclude is None else exclude.keep(everything, domain)
    measured = measure(detector, samples, progress)
    return {
        "domain": domain.name,
        "image": measured.image,
        "pixel": measured.pixel,
        "pixel_error_bound": measured.pixel_error_bound,
        "images": measured.counts,
        "without_mask": measured.without_mask,
        "empty_masks": [str(mask) for mask in measured.empty_masks],
        "excluded": _excluded(exclude, domain, len(everything) - len(samples), len(everything)),
        "support_images_in_test": shared_with_support(detector, samples),
        "domain_is_a_source": _learned_from(detector, domain),
        "mode": detector.card.mode,
        "fingerprint": detector.card.fingerprint,
    }


@dataclass(frozen=True)
class Measured:
    """The metrics of a test split, and what they were computed from."""

    image: dict[str, float | None]
    pixel: dict[str, float | None] | None
    """None where no image has a mask that marks something."""
    counts: dict[str, int]
    without_mask: int
    """Abnormal images that pixel metrics leave out: others have a mask, and theirs is not known."""
    empty_masks: list[Path]
    """Masks that mark nothing at the size of pixel metrics, which take their images as given."""
    predictions: list[Prediction]
    """What the detector said of each image, without its map."""
    maps: dict[int, FloatArray]
    """The maps that were asked for, by the sample's position."""
    pixel_error_bound: float | None = None
    """How far a pixel metric can be from its exact value, 0 if exact; None where there are none."""


def measure(
    detector: Detector,
    samples: Sequence[Sample],
    progress: Progress = silent,
    keep_maps: Collection[int] = (),
) -> Measured:
    """Score samples and compute all metrics; of the maps only those of `keep_maps` are kept."""
    images, pixels = ImageMetrics(), PixelMetrics()
    masked = sum(sample.mask is not None for sample in samples)
    predictions: list[Prediction] = []
    maps: dict[int, FloatArray] = {}
    empty: list[Path] = []
    progress("score", 0, len(samples), "")
    at_a_time = images_at_a_time(detector)
    scored = predict(detector, map(SampleFile, samples), batch=at_a_time, frame="square")
    with one_core_each(detector), closing(scored):
        for index, (sample, one) in enumerate(zip(samples, scored, strict=True)):
            case, said = one.or_raise()
            images.update([said.score], [sample.abnormal])
            if masked and (sample.mask is not None or not sample.abnormal):
                mask = square_mask(sample, case.images[0], MEASURED_PX)
                pixels.update(measured_map(said.map), mask)
                empty += [sample.mask] if sample.mask is not None and not mask.any() else []
            if index in keep_maps:
                maps[index] = said.map
            predictions.append(replace(said, map=np.empty((0, 0), np.float32), descriptor=None))
            progress("score", index + 1, len(samples), "")
    abnormal = sum(sample.abnormal for sample in samples)
    marked = len(empty) < masked
    return Measured(
        images.compute(),
        pixels.compute() if marked else None,
        {"normal": len(samples) - abnormal, "abnormal": abnormal},
        sum(bool(masked) and s.abnormal and s.mask is None for s in samples),
        empty,
        predictions,
        maps,
        pixels.error_bound if marked else None,
    )


@dataclass(frozen=True)
class SampleFile:
    """A labelled image file, read when its turn comes."""

    sample: Sample
    read_alone = False

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.sample.path)

    def open(self, reading: ReadingSettings) -> Case:
        """Read it."""
        image = read_image(self.sample.path, reading)
        return Case("image", image.source, [image])


def need_both_classes(samples: Sequence[Sample], domain: Domain) -> None:
    """Every image metric compares normal with abnormal: told before the work, not after it."""
    for abnormal, folder in ((False, "good"), (True, "Ungood")):
        if all(sample.abnormal != abnormal for sample in samples):
            where = domain.root / "test" / folder if domain.layout == "benchmark" else domain.root
            raise InputError(
                f"{where}: no {CLASSES[abnormal]} test images, and metrics compare both kinds. Add "
                "some; `recap score` scores images of one kind."
            )


def _excluded(
    exclude: Exclusions | None, domain: Domain, count: int, total: int
) -> dict[str, Any] | None:
    if exclude is None:
        return None
    return {
        "images": count,
        "of": total,
        "list": exclude.source.name,
        "sha256": exclude.sha256,
        "unmatched": exclude.unmatched(domain),
    }


def measured_map(values: FloatArray) -> FloatArray:
    """Bring a map (S, S) to the size that pixel metrics are measured at."""
    if len(values) == MEASURED_PX:
        return values
    size = (MEASURED_PX, MEASURED_PX)
    square = torch.from_numpy(values)[None, None]
    stretched = F.interpolate(square, size, mode="bilinear", antialias=True)
    return stretched[0, 0].numpy()


def square_mask(sample: Sample, image: Image, size_px: int) -> BoolArray:
    """A sample's mask as a square; empty where it has none."""
    if sample.mask is None:
        return np.zeros((size_px, size_px), bool)
    return SquareResize(image.size_hw, size_px).apply_mask(read_mask_of(image, sample.mask))


def _learned_from(detector: Detector, domain: Domain) -> bool:
    """Whether a zero-shot detector learned from this domain, so that here it is none."""
    return any(record.get("domain") == domain.name for record in detector.card.support)


def shared_with_support(detector: Detector, samples: Sequence[Sample]) -> int:
    """Test files that are, byte for byte, files the detector was fitted on."""
    fitted_on = {record["sha256"] for record in detector.card.support}
    return sum(sha256_of(sample.path) in fitted_on for sample in samples)
