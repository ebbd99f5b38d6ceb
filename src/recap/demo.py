"""The demo: the whole job on two real patients, ending with a page to look at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from recap._files import make_folder
from recap.data.cases import Found, find_cases
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
from recap.report.overlay import outline_layer, save_png
from recap.report.page import write_score_page
from recap.report.previews import Known, preview_files, write_previews
from recap.report.writers import Overlays
from recap.results.folder import score_cases
from recap.results.manifest import add_to_manifest
from recap.results.table import Row
from recap.scoring.bundle_folder import Bundle
from recap.scoring.detector import Detector
from recap.scoring.fit import fit_support
from recap.types import CLASSES, BoolArray, FloatArray, Sample

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
    folder: str
    """Below the results, so that those of other images stay."""


@dataclass(frozen=True)
class _Scored:
    sample: Sample
    row: Row
    mask: BoolArray
    map: FloatArray


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
    bundle = out / "demo.recap"
    detector.save(bundle)
    results = out / "results" / material.folder
    samples = {str(sample.path.absolute()): sample for sample in test}
    cases = [
        replace(found, name=_name(samples[str(Path(found.path).absolute())]))
        for found in find_cases([sample.path for sample in test], out).cases
    ]
    scored = _score(detector, cases, samples, results, progress)
    write_previews(
        detector, cases, [one.row for one in scored], results, settings.reading, Bundle(bundle)
    )
    image, pixel = _measures(scored)
    known = Known(
        title=f"recap demo: fitted on {len(support)} {fitted_on}, scored on {scored_on}",
        measures={
            "AUROC of pixels (where)": f"{pixel:.3f}",
            "AUROC of images (whether)": f"{image:.3f}",
        },
        notes=[f"Fitted on {_names(support)}.", *material.notes],
        labels={one.row.case: CLASSES[one.sample.abnormal] for one in scored},
    )
    add_to_manifest(results, {}, known=asdict(known))
    return DemoResult(write_score_page(results), _terminal_table(scored, image, pixel))


def _images(out: Path, say: Callable[[str], None], progress: Progress, phantoms: bool) -> _Material:
    if not phantoms:
        try:
            cases = write_tumour_slices(pull_tumours(cache_dir(), progress), out / "slices")
            support = _chosen(cases[FITTED_ON])
            whose = "slices of one patient", "slices of another"
            return _Material(support, _folder(cases[SCORED]), whose, NOTES_REAL, SCORED)
        except RecapError as error:
            say(f"The real images cannot be had here ({error})\nFalling back to phantoms.")
    root = _fresh(out / "phantoms")
    domain = write_phantoms(root, pool=NORMAL_IMAGES, test=6, domains=["Brain"])[0]
    pool = domain.pool()
    normal = [sample for sample in pool if not sample.abnormal][:NORMAL_IMAGES]
    abnormal = [sample for sample in pool if sample.abnormal][:ABNORMAL_IMAGES]
    whose = "phantoms", "others"
    return _Material(normal + abnormal, domain.test(), whose, NOTES_PHANTOM, root.name)


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


def _name(sample: Sample) -> str:
    return f"{CLASSES[sample.abnormal]}/{sample.path.name}"


def _score(
    detector: Detector,
    cases: Sequence[Found],
    samples: Mapping[str, Sample],
    results: Path,
    progress: Progress,
) -> list[_Scored]:
    """Score as `recap score` does, the highest score first, and outline what is known."""
    scored = []
    overlays = Overlays(detector, results)
    for row in score_cases(detector, cases, results, [overlays], progress=progress):
        if row.status != "ok":
            raise RecapError(row.error)
        sample, map = samples[row.path], np.load(results / row.map, allow_pickle=False)
        mask = np.zeros(map.shape, bool) if sample.mask is None else read_mask(sample.mask)
        outline = results / preview_files(row.case).reference
        make_folder(outline.parent)
        save_png(outline_layer(mask), outline)
        scored.append(_Scored(sample, row, mask, map))
    return sorted(scored, key=lambda one: -float(one.row.score))


def _measures(scored: Sequence[_Scored]) -> tuple[float, float]:
    image = auroc([float(s.row.score) for s in scored], [s.sample.abnormal for s in scored])
    maps = np.concatenate([s.map.ravel() for s in scored])
    return image, auroc(maps, np.concatenate([s.mask.ravel() for s in scored]))


def _terminal_table(scored: Sequence[_Scored], image: float, pixel: float) -> list[str]:
    lines = ["slice            reference  score"]
    for s in scored:
        label = CLASSES[s.sample.abnormal]
        lines.append(f"{s.sample.path.name:<16} {label:<10} {float(s.row.score):.3f}")
    return [*lines, f"pixel AUROC {pixel:.3f}, image AUROC {image:.3f} ({len(scored)} images)"]


def _names(samples: list[Sample]) -> str:
    parts = []
    for abnormal in (False, True):
        files = [sample.path.stem for sample in samples if sample.abnormal == abnormal]
        parts.append(f"{len(files)} {CLASSES[abnormal]} ({', '.join(files)})")
    return f"{samples[0].domain}: {' and '.join(parts)}"
