"""One cell: fit, score the test split, measure."""

import shutil
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from recap.benchmark.cells import NORMAL_ONLY, Cell, write_result
from recap.data import Domain, draw_support
from recap.data.exclusions import Exclusions
from recap.data.supports import known_patient
from recap.encoders.load import load_encoder
from recap.encoders.memo import TapsMemo
from recap.encoders.vit import Encoder
from recap.model.recap import Output
from recap.scoring.detector import Detector
from recap.scoring.evaluate import measure
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
    result = result_of(detector, samples)
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


def result_of(detector: Detector, samples: Sequence[Sample]) -> dict[str, Any]:
    """All metrics of a test split, each image's scores, and how far the prototypes moved."""
    measured = measure(detector, samples)
    metrics = {f"image_{name}": value for name, value in measured.image.items()}
    metrics |= {f"pixel_{name}": value for name, value in (measured.pixel or {}).items()}
    pairs = list(zip(samples, measured.outputs, strict=True))
    drift = {}
    for label in (False, True):
        moved = [o.drift[0] for s, o in pairs if s.abnormal == label and o.drift is not None]
        drift[CLASSES[label]] = torch.stack(moved).mean(dim=0).tolist() if moved else None
    return {
        "metrics": metrics,
        "counts": measured.counts,
        "images": [_row(sample, output) for sample, output in pairs],
        "drift": drift,
    }


def _row(sample: Sample, output: Output) -> dict[str, Any]:
    return {
        "file": sample.path.name,
        "abnormal": sample.abnormal,
        "patient": known_patient(sample),
        "score": float(output.score[0]),
        "score_prototype": float(output.prototype.score[0]) if output.prototype else None,
        "score_memory": float(output.memory.score[0]) if output.memory else None,
        "drift": float(output.drift[0].mean()) if output.drift is not None else None,
    }
