"""Metrics of a detector on a domain's test split, normal images included."""

from collections.abc import Callable
from typing import Any

import numpy as np

from recap.config import ReadingSettings
from recap.data.benchmark import Domain
from recap.data.exclusions import Exclusions
from recap.errors import InputError
from recap.fetch import sha256_of
from recap.io import read_image, read_mask
from recap.io.resize import SquareResize
from recap.metrics import auroc, average_precision, f1_max
from recap.scoring.detector import Detector
from recap.types import BoolArray, Sample


def evaluate(
    detector: Detector,
    domain: Domain,
    progress: Callable[[int, int], None] = lambda done, total: None,
    exclude: Exclusions | None = None,
) -> dict[str, Any]:
    """Image AUROC, F1-max and AP, and pixel AUROC where there are masks; fractions, not per cent.

    Maps and masks are compared at the encoder's input size, as the benchmark does. `pixel` is None
    for a domain without masks. Images that `exclude` lists are left out and counted.
    """
    everything = domain.test()
    samples = everything if exclude is None else exclude.keep(everything, domain)
    has_masks = any(sample.mask is not None for sample in samples)
    size, reading = detector.model.encoder.input_px, detector.card.settings.reading
    scores = np.empty(len(samples), np.float32)
    maps = np.empty((len(samples) if has_masks else 0, size, size), np.float32)
    for index, sample in enumerate(samples):
        progress(index, len(samples))
        output = detector.raw_output([read_image(sample.path, reading)])
        scores[index] = float(output.score[0])
        if has_masks:
            maps[index] = output.map[0].cpu().numpy()
    progress(len(samples), len(samples))
    labels = np.array([sample.abnormal for sample in samples])
    return {
        "domain": domain.name,
        "image": {
            "auroc": auroc(scores, labels),
            "f1_max": f1_max(scores, labels),
            "ap": average_precision(scores, labels),
        },
        "pixel": {"auroc": auroc(maps, _masks(samples, size, reading))} if has_masks else None,
        "images": {"normal": int((~labels).sum()), "abnormal": int(labels.sum())},
        "excluded": _excluded(exclude, len(everything) - len(samples), len(everything)),
        "support_images_in_test": _shared_with_support(detector, samples),
        "mode": detector.card.mode,
        "fingerprint": detector.card.fingerprint,
    }


def _excluded(exclude: Exclusions | None, count: int, total: int) -> dict[str, Any] | None:
    if exclude is None:
        return None
    return {"images": count, "of": total, "list": exclude.source.name, "sha256": exclude.sha256}


def _masks(samples: list[Sample], size_px: int, reading: ReadingSettings) -> BoolArray:
    masks = np.zeros((len(samples), size_px, size_px), bool)
    for index, sample in enumerate(samples):
        if sample.mask is not None:
            mask = read_mask(sample.mask)
            if mask.shape != read_image(sample.path, reading).size_hw:
                raise InputError(f"{sample.mask}: its size differs from that of {sample.path}.")
            resize = SquareResize((mask.shape[0], mask.shape[1]), size_px)
            masks[index] = resize.apply_mask(mask)
    return masks


def _shared_with_support(detector: Detector, samples: list[Sample]) -> int:
    """Test files that are, byte for byte, files the detector was fitted on."""
    fitted_on = {record["sha256"] for record in detector.card.support}
    return sum(sha256_of(sample.path) in fitted_on for sample in samples)
