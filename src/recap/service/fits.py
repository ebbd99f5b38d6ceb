"""Fitting and calibrating from uploads: what is asked for, which file is what, and the work."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import HTTPException
from pydantic import Field, ValidationError

from recap.config import Section, Settings
from recap.data.folder import natural_key, pair_masks
from recap.errors import TrainingError, is_full
from recap.methods.recap.settings import Preset
from recap.methods.registry import resolve_settings, settings_from_dict
from recap.progress import Progress
from recap.scoring.bundle_folder import Bundle
from recap.service.bundles import Bundles
from recap.service.jobs import Job
from recap.service.placing import shown_name, split_suffix
from recap.service.settings import NAME
from recap.service.uploads import Form, UploadedFile
from recap.types import Sample
from recap.words import counted

if TYPE_CHECKING:
    from recap.scoring.detector import Detector

Placed = tuple[str, str, str, str]
"""Name in the raw folder, the client's name, its role, its name here."""
ROLES = ("normals", "abnormals", "masks")


class FitOptions(Section):
    """What may be said about a fit. The encoder is that of a bundle that is here already."""

    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")] = "fitted"
    preset: Preset = "recap"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    epochs: Annotated[int, Field(ge=1, le=1000)] | None = None
    augment: bool = True
    encoder_of: str | None = None
    keep_thumbnails: bool = False
    """Small pictures of the normal images go into the bundle; they are images of patients."""


class CalibrateOptions(Section):
    """What may be said about a calibration."""

    fpr: Annotated[float, Field(gt=0, lt=1)] = 0.05
    sensitivity: Annotated[float, Field(gt=0, lt=1)] = 0.95
    decide_by: Literal["fpr", "f1", "youden", "sensitivity"] = "fpr"


def read_options(form: Form, kind: type[Section]) -> Any:
    """The form's options, a JSON object; fields of the same names count too."""
    try:
        given = json.loads(form.fields.get("options") or "{}")
        if not isinstance(given, dict):
            raise HTTPException(422, "options must be a JSON object.")
        plain = {k: v for k, v in form.fields.items() if k in kind.model_fields and k not in given}
        return kind.model_validate({**plain, **given})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise HTTPException(422, f"options.{place}: {first['msg']}.") from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(422, "options is not JSON.") from error


def place_support(form: Form) -> list[Placed]:
    """Give every file its role and a name; a mask gets the name of its image."""
    files = {role: form.files_of(role) for role in ROLES}
    if not files["normals"]:
        raise HTTPException(422, "Send at least one file in the field normals.")
    if len(form.files) != sum(map(len, files.values())):
        raise HTTPException(422, f"Files go into the fields {', '.join(ROLES)}.")
    placed = [
        _placed(file, role, f"{number:06d}")
        for role in ("normals", "abnormals")
        for number, file in enumerate(files[role])
    ]
    stems = {file.raw: f"{number:06d}" for number, file in enumerate(files["abnormals"])}
    pairs = _masks_of(files["abnormals"], files["masks"])
    return placed + [_placed(mask, "masks", stems[image.raw]) for mask, image in pairs]


def _placed(file: UploadedFile, role: str, stem: str) -> Placed:
    shown = shown_name(file.given)
    return file.raw, shown, role, stem + split_suffix(shown)[1]


def _masks_of(
    images: list[UploadedFile], masks: list[UploadedFile]
) -> list[tuple[UploadedFile, UploadedFile]]:
    """Each mask with its image, by the names that the client gave them."""
    by_image = {Path(shown_name(file.given)): file for file in images}
    by_mask = {Path(shown_name(file.given)): file for file in masks}
    if (len(by_image) < len(images) and masks) or len(by_mask) < len(masks):
        raise HTTPException(422, "Two files have the same name, so masks cannot be matched.")
    pairs = pair_masks(list(by_image), list(by_mask))
    if pairs.ambiguous:
        raise HTTPException(422, "An image has two masks, or shares its name with another image.")
    if pairs.orphans:
        raise HTTPException(
            422,
            f"{counted(len(pairs.orphans), 'mask')} without an abnormal image. A mask has its "
            "image's name, or that name and _mask.",
        )
    return [(by_mask[mask], by_image[image]) for image, mask in pairs.matched.items()]


def fit_settings(options: FitOptions, bundles: Bundles) -> Settings:
    """All settings of a fit: those of the preset, on the encoder and the reading of a bundle."""
    base = bundles.card(options.encoder_of or bundles.first())
    if base is None:
        raise HTTPException(422, "options.encoder_of: no bundle is called so.")
    training: dict[str, Any] = {"augment": options.augment}
    if options.epochs is not None:
        training["epochs"] = options.epochs
    encoder = base.settings.encoder.model_dump(mode="json")
    reading = base.settings.reading.model_dump(mode="json")
    return resolve_settings(
        options.preset, seed=options.seed, encoder=encoder, reading=reading, training=training
    )


def run_fit(job: Job, folder: Path, out: Path, device: str, progress: Progress) -> "Detector":
    """Fit on a job's files and save the bundle to `out`."""
    from recap.data.support import load_support, thumbnails
    from recap.scoring.fit import fit_support

    settings = settings_from_dict(job.options["settings"])
    support = load_support(_samples(folder / "upload"), settings.reading)
    work = folder / "work"
    resumed = work.exists()
    where: dict[str, Any] = {"work_dir": work, "device": device, "progress": progress}
    try:
        detector = fit_support(support, settings, **where)
    except TrainingError as error:
        if not resumed or is_full(error):  # without room nothing is damaged, and it goes on later
            raise
        shutil.rmtree(work)  # what a power cut left of it cannot be used
        detector = fit_support(support, settings, **where)
    kept = thumbnails(support) if job.options["keep_thumbnails"] else {}
    detector.save(out, thumbnails=kept)
    return detector


def _samples(upload: Path) -> list[Sample]:
    masks = {split_suffix(file.name)[0]: file for file in (upload / "masks").glob("*")}
    normals = sorted((upload / "normals").iterdir(), key=natural_key)
    abnormals = sorted((upload / "abnormals").glob("*"), key=natural_key)
    return [Sample(file, abnormal=False) for file in normals] + [
        Sample(file, abnormal=True, mask=masks.get(split_suffix(file.name)[0]))
        for file in abnormals
    ]


def run_calibration(
    job: Job, detector: "Detector", source: Path, folder: Path, out: Path, progress: Progress
) -> "Detector":
    """Calibrate a detector on a job's files and save it to `out`; `source` is its bundle."""
    from recap.scoring.calibrate import calibrate

    Bundle(source).files()  # all of them go with it: what may not is told of before the work
    upload = folder / "upload"
    abnormals = upload / "abnormals"
    found = calibrate(
        detector,
        upload / "normals",
        abnormals if abnormals.is_dir() else None,
        progress=progress,
        **job.options["calibrate"],
    )
    found.detector.save(out, keep=source)
    return found.detector
