"""The demo: the whole job on two real patients, ending with a page to look at."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recap.data.folder import folder_samples
from recap.data.phantom import write_phantoms
from recap.data.support import load_support
from recap.data.tumours import pull_tumours, spread, write_tumour_slices
from recap.encoders.weights import cache_dir, pull
from recap.errors import RecapError
from recap.io import read_mask
from recap.methods.registry import resolve_settings
from recap.metrics import auroc
from recap.progress import Progress
from recap.report import (
    Report,
    ReportRow,
    as_picture,
    encode_png,
    legend,
    outline,
    overlay,
    write_report,
)
from recap.scoring.detector import Detector
from recap.scoring.evaluate import SampleFile
from recap.scoring.fit import fit_support
from recap.scoring.predict import predict
from recap.types import CLASSES, BoolArray, Image, Prediction, Sample

# Patient 2 has the fewer lesions and the more normal levels, so it is the one to learn from: the
# memory then knows the anatomy at the levels where patient 1 has the tumour.
FITTED_ON, SCORED = "brain2", "brain1"
NORMAL_IMAGES, ABNORMAL_IMAGES = 5, 3
NOTES_REAL = [
    "Two contrast-enhanced brain MRIs from the sample data of pyradiomics 3.0.1 (BSD-3-Clause); "
    "slices without the outlined tumour are taken as normal.",
    "Eight slices of one patient are far too few for a reliable image score: it also reacts to "
    "the level of the slice. Look at where the maps light up, and fit on several patients.",
]
NOTES_PHANTOM = [
    "The images are generated phantoms, not patients: they show how the software works, and "
    "nothing about how well it detects disease."
]


@dataclass(frozen=True)
class DemoResult:
    """Where the page is, and the small table for the terminal."""

    page: Path
    table: list[str]


@dataclass(frozen=True)
class _Material:
    support: list[Sample]
    test: list[Sample]
    whose: tuple[str, str]
    """Of whom the images are: those fitted on, and those scored."""
    notes: list[str]


@dataclass(frozen=True)
class _Scored:
    sample: Sample
    image: Image
    mask: BoolArray
    prediction: Prediction


def run_demo(
    out: Path, say: Callable[[str], None], progress: Progress, phantoms: bool = False
) -> DemoResult:
    """Fetch encoder and images, fit on eight, score the rest, write the page."""
    settings = resolve_settings()
    pull(settings.encoder.name, progress)
    material = _images(out, say, progress, phantoms)
    support, test, (fitted_on, scored_on) = material.support, material.test, material.whose
    say(f"Fitting on {len(support)} {fitted_on}, then scoring {len(test)} {scored_on}.")
    detector = fit_support(load_support(support), settings, progress=progress)
    detector.save(out / "demo.recap")
    progress("score", 0, len(test), "")
    scored = []
    with closing(predict(detector, map(SampleFile, test))) as found:
        for sample, one in zip(test, found, strict=True):
            case, said = one.or_raise()
            scored.append(_scored(sample, case.images[0], said))
            progress("score", len(scored), len(test), sample.path.name)
    scored.sort(key=lambda s: s.prediction.score, reverse=True)  # as somebody would look at them
    page = out / "report.html"
    write_report(_report(detector, scored, material), page)
    return DemoResult(page, _terminal_table(scored))


def _images(out: Path, say: Callable[[str], None], progress: Progress, phantoms: bool) -> _Material:
    if not phantoms:
        try:
            cases = write_tumour_slices(pull_tumours(cache_dir(), progress), out / "slices")
            support = _chosen(cases[FITTED_ON])
            whose = "slices of one patient", "slices of another"
            return _Material(support, _folder(cases[SCORED]), whose, NOTES_REAL)
        except RecapError as error:
            say(f"The real images cannot be had here ({error})\nFalling back to phantoms.")
    root = out / "phantoms"
    domain = write_phantoms(_fresh(root), pool=NORMAL_IMAGES, test=6, domains=["Brain"])[0]
    pool = domain.pool()
    normal = [sample for sample in pool if not sample.abnormal][:NORMAL_IMAGES]
    abnormal = [sample for sample in pool if sample.abnormal][:ABNORMAL_IMAGES]
    return _Material(normal + abnormal, domain.test(), ("phantoms", "others"), NOTES_PHANTOM)


def _fresh(root: Path) -> Path:
    number = 1
    while root.with_name(f"{root.name}-{number}").exists():
        number += 1
    return root.with_name(f"{root.name}-{number}")


def _folder(case: Path) -> list[Sample]:
    return folder_samples(case / "normal", case / "abnormal", case / "masks", case.name)


def _chosen(case: Path) -> list[Sample]:
    samples = _folder(case)
    normal = [sample for sample in samples if not sample.abnormal]
    abnormal = [sample for sample in samples if sample.abnormal]
    return spread(normal, NORMAL_IMAGES) + spread(abnormal, ABNORMAL_IMAGES)


def _scored(sample: Sample, image: Image, prediction: Prediction) -> _Scored:
    mask = np.zeros(image.size_hw, bool) if sample.mask is None else read_mask(sample.mask)
    return _Scored(sample, image, mask, prediction)


def _measures(scored: list[_Scored]) -> tuple[float, float]:
    image = auroc([s.prediction.score for s in scored], [s.sample.abnormal for s in scored])
    maps = np.concatenate([s.prediction.map.ravel() for s in scored])
    return image, auroc(maps, np.concatenate([s.mask.ravel() for s in scored]))


def _terminal_table(scored: list[_Scored]) -> list[str]:
    image, pixel = _measures(scored)
    lines = ["slice            reference  score"]
    for s in scored:
        label = CLASSES[s.sample.abnormal]
        lines.append(f"{s.sample.path.name:<16} {label:<10} {s.prediction.score:.3f}")
    return [*lines, f"pixel AUROC {pixel:.3f}, image AUROC {image:.3f} ({len(scored)} images)"]


def _report(detector: Detector, scored: list[_Scored], material: _Material) -> Report:
    card, (fitted_on, scored_on) = detector.card, material.whose
    image, pixel = _measures(scored)
    counts = [sum(s.sample.abnormal == abnormal for s in scored) for abnormal in (False, True)]
    return Report(
        title=f"recap demo: fitted on {len(material.support)} {fitted_on}, scored on {scored_on}",
        summary=[
            ("Detector", f"{card.mode}, preset {card.settings.preset}"),
            ("Encoder", f"{card.encoder.name} (sha256 {card.encoder.sha256[:12]}…)"),
            ("Fitted on", _names(material.support)),
            ("Consists of", card.statement),
        ],
        table=[
            ["", "AUROC", "normal", "abnormal"],
            ["pixels (where)", f"{pixel:.3f}", str(counts[0]), str(counts[1])],
            ["images (whether)", f"{image:.3f}", str(counts[0]), str(counts[1])],
        ],
        notes=material.notes,
        rows=[_row(s, detector) for s in scored],
        legend_png=encode_png(legend(detector.map_scale)),
    )


def _names(samples: list[Sample]) -> str:
    parts = []
    for abnormal in (False, True):
        files = [sample.path.stem for sample in samples if sample.abnormal == abnormal]
        parts.append(f"{len(files)} {CLASSES[abnormal]} ({', '.join(files)})")
    return f"{samples[0].domain}: {' and '.join(parts)}"


def _row(scored: _Scored, detector: Detector) -> ReportRow:
    prediction, picture = scored.prediction, as_picture(scored.image)
    details = {}
    if prediction.score_prototype is not None:
        details["prototypes"] = f"{prediction.score_prototype:.3f}"
    if prediction.score_memory is not None:
        details["memory"] = f"{prediction.score_memory:.3f}"
    return ReportRow(
        name=scored.sample.path.name,
        label=CLASSES[scored.sample.abnormal],
        score=prediction.score,
        input_png=encode_png(picture),
        map_png=encode_png(overlay(scored.image, prediction.map, detector.map_scale)),
        truth_png=encode_png(outline(picture, scored.mask)),
        details=details,
    )
