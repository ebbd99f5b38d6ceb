"""`recap.fit`, and how any method is fitted: same images, same encoder, one bundle."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from recap.config import Settings
from recap.data.benchmark import Domain
from recap.data.support import (
    Masks,
    Pictures,
    SupportImage,
    gather_support,
    support_records,
)
from recap.encoders.load import seed_draws
from recap.encoders.registry import preprocessing_fingerprint
from recap.errors import InputError, SettingsError
from recap.methods.base import Scorer
from recap.methods.checkpoint import FINGERPRINT, open_checkpoint
from recap.methods.fitting import Fitted, Job, scale_of_images
from recap.methods.images import (
    LabelledImages,
    source_images,
    source_records,
    source_samples,
    support_images,
)
from recap.methods.registry import Method, find_method, resolve_settings
from recap.methods.training import choose_device
from recap.progress import Progress, silent
from recap.scoring.bundle import Card, EncoderRecord, library_versions
from recap.scoring.calibration import calibrate_scores
from recap.scoring.detector import Detector
from recap.scoring.domain_guard import domain_range
from recap.types import Mode


class Where(TypedDict, total=False):
    """The place of a fit, and who hears of it; the same for every way of fitting."""

    work_dir: Path | None
    device: str
    progress: Progress
    encoder: Any


def fit(
    normal: Pictures,
    abnormal: Pictures | None = None,
    masks: Masks | None = None,
    *,
    preset: str | None = None,
    seed: int | None = None,
    settings: Settings | None = None,
    work_dir: str | Path | None = None,
    device: str = "auto",
    progress: Progress = silent,
) -> Detector:
    """Fit a detector on a few images of your own.

    Args:
        normal: healthy images: a folder, a list of files, or a list of arrays (see
            `Detector.score` for what an array may be).
        abnormal: images with lesions, likewise. Without any, the detector is a memory of the
            normal images, whose tokens made-up lesions adapt (`training.made_up_lesions`).
        masks: lesion masks: a folder with files named like the abnormal images, or a list with
            one mask (or None) for each abnormal image: files with files, arrays with arrays.
        preset: `recap` (the default), `fast` (the published model, side adapters) or `paper` (the
            published recipe).
        seed: of every generator; 0 by default.
        settings: all settings, as `recap.resolve_settings` makes them, method, preset and seed
            included.
        work_dir: a folder of its own for unfinished work; an interrupted fit goes on from there,
            a finished one removes it.
        device: `auto`, `cpu` or `cuda`.
        progress: called with stage, done, total and detail at every step; `print` will do.
    """
    if settings is None:
        settings = resolve_settings(preset, seed=seed or 0)
    elif preset is not None or seed is not None:
        given = f"preset={preset!r}" if preset is not None else f"seed={seed!r}"
        raise SettingsError(
            f"{given} beside settings=, which have a preset and a seed: one would be ignored. Put "
            "it into the settings: recap.resolve_settings(preset, seed=…)."
        )
    support = gather_support(normal, abnormal, masks, settings.reading)
    work = None if work_dir is None else _own_folder(Path(work_dir))
    detector = fit_support(support, settings, work_dir=work, device=device, progress=progress)
    if work is not None:
        shutil.rmtree(work, ignore_errors=True)
    return detector


def _own_folder(work: Path) -> Path:
    """Refuse a folder with other things in it: it is removed in the end."""
    if work.is_dir() and any(work.iterdir()) and not (work / FINGERPRINT).is_file():
        raise InputError(
            f"work_dir {work} holds other files than an unfinished fit, and would be removed with "
            f"them. Give a folder of its own, such as {work / 'unfinished'}."
        )
    return work


def fit_support(
    support: Sequence[SupportImage],
    settings: Settings,
    *,
    domain: str = "",
    **where: Unpack[Where],
) -> Detector:
    """Fit on the target's own images; `domain` names what they show, for methods with text.

    With `work_dir` an interrupted fit goes on where it stopped.
    """
    method = find_method(settings.method)
    ordered = sorted(support, key=lambda item: item.abnormal)  # normals first, else as given
    if all(item.abnormal for item in ordered):
        raise InputError("There are no normal images. Every method needs at least 1.")
    few_shot = any(item.abnormal for item in ordered)
    if method.needs_abnormal and not few_shot:
        raise InputError(f"{method.title} needs abnormal images too. Give some with --abnormal.")

    def images(size_px: int) -> LabelledImages:
        return support_images(ordered, size_px, domain)

    mode: Mode = "few-shot" if few_shot else "normal-only"
    return _fit(method, settings, mode, support_records(ordered), images, domain, **where)


def fit_sources(
    sources: Sequence[Domain], settings: Settings, *, domain: str = "", **where: Unpack[Where]
) -> Detector:
    """Fit on the pools of other domains; `domain` names the one that will be scored."""
    method = find_method(settings.method)
    if method.zero_shot == "no":
        raise InputError(f"{method.title} has no zero-shot form: it needs images of the target.")
    training = getattr(settings, "training", None)
    samples = source_samples(sources, getattr(training, "source_split", "pool"))
    records: list[dict[str, Any]] = [dict(record) for record in source_records(samples)]

    def images(size_px: int) -> LabelledImages:
        return source_images(samples, size_px, settings.reading)

    return _fit(method, settings, "zero-shot", records, images, domain, **where)


def _fit(
    method: Method,
    settings: Settings,
    mode: Mode,
    records: list[dict[str, Any]],
    images_at: Callable[[int], LabelledImages],
    target: str,
    *,
    work_dir: Path | None = None,
    device: str = "auto",
    progress: Progress = silent,
    encoder: Any = None,
) -> Detector:
    settings = _with_name(method, settings, mode, target)
    chosen = choose_device(device)
    # Before the seed is set: loading may draw numbers for parts that are then thrown away.
    encoder = encoder or method.load_encoder(settings.encoder, settings.seed)
    mark = fingerprint(mode, settings, encoder, records)
    open_checkpoint(work_dir, mark)  # another fit's unfinished work is refused first of all
    images = images_at(encoder.input_px)
    variant = method.choose_variant(settings, mode, bool(images.has_mask.any()))
    with torch.random.fork_rng(devices=[chosen] if chosen.type == "cuda" else []):
        seed_draws(settings.seed, chosen)
        model = method.build(encoder, settings, variant).to(chosen)
        job = Job(settings, mode == "zero-shot", progress, mark, work_dir)
        fitted = method.fit(model, images, job)
    model.eval()
    detector = assemble(
        model,
        mode,
        settings,
        records,
        fitted.losses,
        fitted.map_scale or scale_of_images(model, images),
        fitted.statement or _statement(method, mode),
        variant,
    )
    return _with_estimate(detector, fitted)


def assemble(
    model: Scorer,
    mode: Mode,
    settings: Settings,
    support: list[dict[str, Any]],
    losses: dict[str, float],
    map_scale: tuple[float, float],
    statement: str,
    variant: str = "",
) -> Detector:
    """Wrap a finished model and say what it is."""
    encoder = model.encoder
    card = Card(
        mode=mode,
        variant=variant,
        statement=statement,
        encoder=EncoderRecord(name=encoder.name, sha256=encoder.checksum),
        preprocessing={
            "input_px": encoder.input_px,
            "resize": "square, bicubic with antialias",
            **preprocessing_fingerprint(encoder),
        },
        settings=settings,
        support=support,
        losses=losses,
        map_scale=map_scale,
        versions=library_versions(),
        fingerprint=fingerprint(mode, settings, encoder, support),
    )
    return Detector(model, card)


def _with_name(method: Method, settings: Settings, mode: Mode, target: str) -> Settings:
    """Make what the text calls the images a setting, for it decides numbers, whoever gave it."""
    named = getattr(method.options(settings), "domain", None)
    asked = method.uses_text and (mode != "zero-shot" or method.names_target)
    if not asked or not target or named != "":
        return settings
    options = method.options(settings).model_copy(update={"domain": target})
    return settings.model_copy(update={"options": options})


def _statement(method: Method, mode: Mode) -> str:
    statement: str = method.module.STATEMENT
    if not method.extends(mode == "zero-shot"):
        return statement
    shots = "Zero-shot" if mode == "zero-shot" else "Few-shot"
    return f"{statement} {shots} fitting of this kind is an extension of what was published."


def _with_estimate(detector: Detector, fitted: Fitted) -> Detector:
    """Add the range of the domain and a first calibration, if the fit found out about them.

    Normal support images are left out in turn. The memory forgets such an image; what was trained
    on it cannot. So this is an estimate, marked as one, that `recap calibrate` with other images
    replaces. With one normal image there is none, and with one image in all no range.
    """
    if fitted.descriptors is not None:
        rows = fitted.descriptors.cpu().numpy()
        detector = detector.guarded(*domain_range([row[None] for row in rows]))
    if not fitted.left_out:
        return detector
    calibration = calibrate_scores(
        [float(output.score[0]) for output in fitted.left_out],
        [float(output.map.max()) for output in fitted.left_out],
        source="leave-one-out",
        reading=detector.card.settings.reading,
    )
    return detector.calibrated(calibration)


def fingerprint(mode: Mode, settings: Settings, encoder: Any, support: list[dict[str, Any]]) -> str:
    """Identify a fit before it is done: settings, encoder, images and versions."""
    # What is kept of tokens changes no number: a fit that found the disk full may go on without.
    own = settings.model_dump(mode="json", exclude={"training": {"cache_gb"}})
    how = [encoder.checksum, preprocessing_fingerprint(encoder)]
    parts = [mode, own, how, support, library_versions()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
