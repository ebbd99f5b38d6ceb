"""One cell: fit, score the test split, measure."""

import shutil
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from recap.bench.cells import Cell, noting, work_folder
from recap.bench.examples import choose_examples, keep_examples, keep_maps, name_of
from recap.bench.kept import write_result
from recap.bench.supports import Supports, fitted_samples, support_record
from recap.data import Domain, Support
from recap.data.support import load_support
from recap.data.supports import Exclusions, held_out_pool, known_patient
from recap.encoders.memo import Memo
from recap.encoders.vit import Encoder
from recap.errors import InputError, OtherFitError
from recap.methods.images import leave_one_out
from recap.methods.registry import find_method
from recap.progress import Progress
from recap.scoring.detector import Detector, load_detector
from recap.scoring.evaluate import Measured, measure, need_both_classes, shared_with_support
from recap.scoring.fit import fit_sources, fit_support
from recap.types import CLASSES, Prediction, Sample


def run_cell(
    cell: Cell,
    domains: Sequence[Domain],
    out: Path,
    exclude: Exclusions | None = None,
    share_heads: bool = False,
    drawn: Support | None = None,
) -> None:
    """Run a cell and keep its result; images that were encoded for another cell are not again.

    `drawn` is its support set, where that is known already.
    With `share_heads` the fitted detector is kept, and serves all cells that differ in the weight
    of the memory alone.
    """
    target = next(domain for domain in domains if domain.name == cell.dataset)
    drawn = drawn or cell.support(Supports([target]))
    samples = _measured_images(cell, target, drawn, exclude)  # without any, no fit is needed
    support = fitted_samples(drawn, cell.method) if drawn else []
    encoder = find_method(cell.method).load_encoder(cell.settings.encoder, cell.settings.seed)
    if isinstance(encoder, Encoder):
        encoder.memo = Memo(out / "taps")
    started = time.monotonic()
    work = work_folder(out, cell.name)
    tell = noting(work)
    head = out / "heads" / cell.fit_name
    if share_heads and head.exists():
        detector = load_detector(head, encoder=encoder, settings=cell.settings)
        if cell.shots:
            _refuse_other_head(detector, support, head)
    else:
        try:
            detector = _fit(cell, domains, support, encoder, work, tell)
        except OtherFitError:  # left by another version of a library: this cell is its only owner
            shutil.rmtree(work)
            detector = _fit(cell, domains, support, encoder, work, tell)
        if share_heads:
            detector.save(head)
    fitted = time.monotonic()
    # Their names say class and file, not split: images of a pool could stand under maps of tests.
    shown = choose_examples(samples) if cell.on == "test" else []
    measured = measure(detector, samples, tell, keep_maps=shown)
    scored = time.monotonic()
    result = result_of(detector, samples, measured)
    if support:
        result["support"] = support_record(support, target)
    result["seconds"] = {"fit": fitted - started, "score": scored - fitted}
    result["fingerprint"] = detector.card.fingerprint
    result["losses"] = detector.card.losses
    # The order of sums depends on it, and so a fit's last digits.
    result["threads"] = torch.get_num_threads()
    result["versions"] = {name: version(name) for name in ("recap-ad", "torch", "transformers")}
    if shown:
        keep_examples(out, cell, [samples[i] for i in shown], encoder.input_px)
        keep_maps(out, cell, {name_of(samples[i]): measured.maps[i] for i in shown})
    write_result(out, cell, result)  # last: a cell that has a result has everything
    shutil.rmtree(work, ignore_errors=True)


def _fit(
    cell: Cell,
    domains: Sequence[Domain],
    support: Sequence[Sample],
    encoder: Any,
    work: Path,
    progress: Progress,
) -> Detector:
    work.mkdir(parents=True, exist_ok=True)
    where = {"domain": cell.dataset, "work_dir": work, "encoder": encoder, "progress": progress}
    if cell.shots == 0:
        return fit_sources(leave_one_out(domains, cell.dataset), cell.settings, **where)
    return fit_support(load_support(support, cell.settings.reading), cell.settings, **where)


def _refuse_other_head(detector: Detector, support: Sequence[Sample], head: Path) -> None:
    """A kept head may be older than what the pool has now."""
    then = [(record["name"], record["label"]) for record in detector.card.support]
    if then != [(sample.path.name, CLASSES[sample.abnormal]) for sample in support]:
        raise InputError(
            f"{head}: was fitted on other support images than the pool gives now. Choose another "
            "--out; or remove this folder to fit again."
        )


def _measured_images(
    cell: Cell, target: Domain, support: Support | None, exclude: Exclusions | None
) -> list[Sample]:
    if cell.on == "pool":
        left = held_out_pool(target, support)
        if len({sample.abnormal for sample in left}) < 2:
            raise InputError(
                f"{target.root}: {cell.shots} shots leave {len(left)} images of other patients in "
                "the pool, not both normal and abnormal ones to measure on. Take fewer --shots."
            )
        return left
    samples = target.test()
    need_both_classes(samples, target)
    return samples if exclude is None else exclude.keep(samples, target)


def result_of(detector: Detector, samples: Sequence[Sample], measured: Measured) -> dict[str, Any]:
    """All metrics of a test split, each image's scores, and how far the prototypes moved."""
    metrics = {f"image_{name}": value for name, value in measured.image.items()}
    metrics |= {f"pixel_{name}": value for name, value in (measured.pixel or {}).items()}
    pairs = list(zip(samples, measured.predictions, strict=True))
    drift: dict[str, Any] = {}
    for label in (False, True):
        moved = [p.drift for s, p in pairs if s.abnormal == label and p.drift is not None]
        each = [torch.from_numpy(values) for values in moved]
        drift[CLASSES[label]] = torch.stack(each).mean(dim=0).tolist() if each else None
    bound = detector.model.drift_bound()
    drift["bound"] = None if bound is None else bound.tolist()
    return {
        "metrics": metrics,
        "pixel_error_bound": measured.pixel_error_bound,
        "counts": measured.counts,
        "without_mask": measured.without_mask,
        "empty_masks": [mask.name for mask in measured.empty_masks],
        "support_images_in_test": shared_with_support(detector, samples),
        "images": [_row(sample, said) for sample, said in pairs],
        "drift": drift,
    }


def _row(sample: Sample, said: Prediction) -> dict[str, Any]:
    drift = None if said.drift is None else torch.from_numpy(said.drift).mean(dim=1)  # over layers
    return {
        "file": sample.path.name,
        "abnormal": sample.abnormal,
        "patient": known_patient(sample),
        "score": said.score,
        "score_prototype": said.score_prototype,
        "score_memory": said.score_memory,
        # [[seg normal, seg abnormal], [det normal, det abnormal]]: branch, then prototype
        "drift": None if drift is None else [[round(v, 6) for v in row] for row in drift.tolist()],
    }
