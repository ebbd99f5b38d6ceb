"""One cell: fit, score the test split, measure."""

import shutil
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from recap.benchmark.cells import NORMAL_ONLY, Cell, write_result
from recap.data import Domain, draw_support
from recap.data.exclusions import Exclusions
from recap.data.supports import known_patient
from recap.encoders.load import load_encoder
from recap.encoders.memo import TapsMemo
from recap.encoders.vit import Encoder
from recap.io import read_image
from recap.metrics import ImageMetrics, PixelMetrics
from recap.scoring.detector import Detector
from recap.scoring.evaluate import square_mask
from recap.training.fewshot import fit_few_shot
from recap.training.support import load_support
from recap.training.zeroshot import fit_zero_shot, leave_one_out
from recap.types import CLASSES, Sample


def run_cell(
    cell: Cell, domains: Sequence[Domain], out: Path, exclude: Exclusions | None = None
) -> None:
    """Run a cell and keep its result; images that were encoded for another cell are not again."""
    target = next(domain for domain in domains if domain.name == cell.dataset)
    encoder = load_encoder(cell.settings.encoder, cell.settings.seed)
    encoder.memo = TapsMemo(out / "taps")
    started = time.monotonic()
    work = out / "work" / cell.name
    detector = _fit(cell, domains, target, encoder, work)
    fitted = time.monotonic()
    samples = target.test() if exclude is None else exclude.keep(target.test(), target)
    result = measure(detector, samples)
    result["seconds"] = {"fit": fitted - started, "score": time.monotonic() - fitted}
    result["fingerprint"] = detector.card.fingerprint
    result["losses"] = detector.card.losses
    result["versions"] = {name: version(name) for name in ("recap-ad", "torch", "transformers")}
    write_result(out, cell, result)
    shutil.rmtree(work, ignore_errors=True)


def _fit(
    cell: Cell, domains: Sequence[Domain], target: Domain, encoder: Encoder, work: Path
) -> Detector:
    work.mkdir(parents=True, exist_ok=True)
    if cell.shots == 0:
        sources = leave_one_out(domains, target.name)
        return fit_zero_shot(sources, cell.settings, work_dir=work, encoder=encoder)
    support = draw_support(target, cell.shots, cell.draw)
    samples = [*support.normal, *(() if cell.method in NORMAL_ONLY else support.abnormal)]
    loaded = load_support(samples, cell.settings.reading)
    return fit_few_shot(loaded, cell.settings, work_dir=work, encoder=encoder)


def measure(detector: Detector, samples: Sequence[Sample]) -> dict[str, Any]:
    """All metrics of a test split, each image's scores, and how far the prototypes moved."""
    images, pixels = ImageMetrics(), PixelMetrics()
    has_masks = any(sample.mask is not None for sample in samples)
    size, reading = detector.model.encoder.input_px, detector.card.settings.reading
    rows: list[dict[str, Any]] = []
    drift: dict[bool, list[Any]] = {False: [], True: []}
    for sample in samples:
        image = read_image(sample.path, reading)
        output = detector.raw_output([image])
        score = float(output.score[0])
        images.update([score], [sample.abnormal])
        if has_masks:
            pixels.update(output.map[0].cpu().numpy(), square_mask(sample, image, size))
        if output.drift is not None:
            drift[sample.abnormal].append(output.drift[0].cpu().numpy())
        rows.append(_row(sample, score, output))
    metrics = {f"image_{name}": value for name, value in images.compute().items()}
    if has_masks:
        metrics |= {f"pixel_{name}": value for name, value in pixels.compute().items()}
    abnormal = sum(sample.abnormal for sample in samples)
    return {
        "metrics": metrics,
        "counts": {"abnormal": abnormal, "normal": len(samples) - abnormal},
        "images": rows,
        "drift": {
            CLASSES[label]: np.mean(moved, axis=0).tolist() if moved else None
            for label, moved in drift.items()
        },
    }


def _row(sample: Sample, score: float, output: Any) -> dict[str, Any]:
    return {
        "file": sample.path.name,
        "abnormal": sample.abnormal,
        "patient": known_patient(sample),
        "score": score,
        "score_prototype": float(output.prototype.score[0]) if output.prototype else None,
        "score_memory": float(output.memory.score[0]) if output.memory else None,
        "drift": float(output.drift[0].mean()) if output.drift is not None else None,
    }
