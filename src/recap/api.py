"""What the commands do, as functions: each command parses, calls one of these and prints.

recap.score_folder("brain.recap", "new_cases/", "results/", report=True)
recap.evaluate("brain.recap", "data/Brain_AD")["image"]["auroc"]
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from recap._files import scratch_folder
from recap.data import Domain, read_domain
from recap.data.supports import read_exclusions
from recap.progress import Progress, silent
from recap.results.table import WHOLE, Shard
from recap.runtime.choose import load, load_many
from recap.runtime.export import export_bundle
from recap.runtime.record import ExportRecord
from recap.score_request import (
    FolderResult,
    ScoreRequest,
    Scoring,
    check_window,
    reading_from,
    result_folders,
)
from recap.scoring import calibrate as calibrating
from recap.scoring import evaluate as evaluating
from recap.scoring.calibrate import Calibrated
from recap.scoring.detector import Detector
from recap.scoring.explain import explain

__all__ = ["calibrate", "evaluate", "explain", "export", "score_folder"]

Place = str | Path


def score_folder(
    detectors: Place | Sequence[Place],
    inputs: Place | Sequence[Place],
    out: Place,
    *,
    report: bool = False,
    parquet: bool = False,
    dicom: bool = False,
    ignore: Place | None = None,
    window: str | None = None,
    axis: str | None = None,
    runtime: str | None = None,
    device: str = "auto",
    random_weights: bool = False,
    workers: int | None = None,
    batch: int | None = None,
    shard: Shard = WHOLE,
    progress: Progress = silent,
) -> list[FolderResult]:
    """Score images into a folder, as `recap score` does: a table, maps, overlays, a page.

    Args:
        detectors: bundles saved by `recap fit`. With several, each has a folder of its own in
            `out`, and an image is encoded once for all that can share it.
        inputs: pictures, DICOM, NIfTI, NRRD, slides; folders or zips of them.
        out: the folder for the results. What is there already is not scored again.
        report: whether there is a page, report.html, with pictures and why.
        parquet: whether there is also a table with types.
        dicom: whether there are DICOM results of DICOM files.
        ignore: a folder of masks named like the cases: no regions where they are set.
        window: how values become grey, if not as when calibrated or fitted.
        axis: which way volumes are cut, likewise.
        runtime: torch, onnx, openvino, openvino-int8 or auto.
        device: auto, cpu or cuda.
        random_weights: whether an untrained encoder is meant to be.
        workers: threads that read ahead.
        batch: images that are scored at a time.
        shard: one part of the cases, for several machines with one `out`.
        progress: called with stage, done, total and detail.

    Returns:
        What came of each detector, in their order. A file that cannot be read is a row with
        `status` error.
    """
    request = ScoreRequest(
        bundles=result_folders(_paths(detectors), Path(out)),
        inputs=tuple(_paths(inputs)),
        report=report,
        parquet=parquet,
        dicom=dicom,
        ignore=None if ignore is None else Path(ignore),
        window=window,
        axis=axis,
        runtime=runtime,
        device=device,
        random_weights=random_weights,
        workers=workers,
        batch=batch,
    )
    request.check(shard)
    with scratch_folder() as scratch:
        return Scoring(request, scratch).score(shard, progress)


def evaluate(
    detector: Detector | Place,
    dataset: Domain | Place,
    *,
    exclude: Place | None = None,
    runtime: str | None = None,
    device: str = "auto",
    random_weights: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure a detector on a test split, as `recap evaluate` does.

    Args:
        detector: a detector or its bundle.
        dataset: a data set: a folder or a .csv manifest; its test split is used.
        exclude: a list of test images to leave out: the exclude.txt of `recap data audit`.
        runtime: of a bundle: torch, onnx, openvino, openvino-int8 or auto.
        device: of a bundle: auto, cpu or cuda.
        random_weights: whether an untrained encoder is meant to be.
        progress: called with stage, done, total and detail.

    Returns:
        `image` and `pixel` metrics as fractions, and what they were computed from.
    """
    domain = dataset if isinstance(dataset, Domain) else read_domain(Path(dataset))
    excluded = None if exclude is None else read_exclusions(Path(exclude))
    if not isinstance(detector, Detector):
        (detector,) = load_many([detector], device, random_weights, runtime)
    return evaluating.evaluate(detector, domain, progress, exclude=excluded)


def calibrate(
    detector: Detector | Place,
    normal: Any,
    abnormal: Any = None,
    *,
    window: str | None = None,
    axis: str | None = None,
    runtime: str | None = None,
    device: str = "auto",
    random_weights: bool = False,
    **how: Any,
) -> Calibrated:
    """Set a detector's threshold from images of known label, as `recap calibrate` does.

    Args:
        detector: a detector or its bundle.
        normal: healthy cases that it was not fitted on: folders, files or zips, or arrays.
        abnormal: cases with lesions, for operating points and a probability.
        window: how values become grey, if not as the detector has it.
        axis: which way volumes are cut, likewise.
        runtime: of a bundle: torch, onnx, openvino, openvino-int8 or auto.
        device: of a bundle: auto, cpu or cuda.
        random_weights: whether an untrained encoder is meant to be.
        **how: `fpr`, `sensitivity`, `decide_by`, `reading` and `progress`.

    Returns:
        The calibrated detector, and the files that could not be used.
    """
    check_window(window)
    if not isinstance(detector, Detector):
        detector = load(detector, device, random_weights, runtime=runtime)
    how["reading"] = reading_from(how.get("reading") or detector.card.reading, window, axis)
    return calibrating.calibrate(detector, normal, abnormal, **how)


def export(
    bundle: Place,
    to: Literal["onnx", "openvino"],
    *,
    int8: Place | None = None,
    random_weights: bool = False,
    progress: Progress = silent,
) -> ExportRecord:
    """Write a detector's graph for another runtime into its bundle, as `recap export` does.

    Args:
        bundle: the detector.
        to: onnx or openvino.
        int8: a folder of typical images, to compute in eight bits (openvino).
        random_weights: whether an untrained encoder is meant to be.
        progress: called with stage, done, total and detail.

    Returns:
        The record of the graph: what it was checked on, and how far it is from torch.
    """
    detector = load(bundle, "cpu", random_weights)
    images = None if int8 is None else Path(int8)
    return export_bundle(detector, Path(bundle), to, images, progress)


def _paths(given: Place | Sequence[Place]) -> list[Path]:
    return [Path(given)] if isinstance(given, str | Path) else [Path(path) for path in given]
