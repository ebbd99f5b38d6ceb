"""Fitting any method on equal terms: same images, same supports, same encoder, one bundle.

The module of a method holds

- `Options`: its own settings, a closed group with the defaults of preset `equal`;
- `OFFICIAL`: what preset `official` changes, as a nested dictionary of settings;
- `STATEMENT`: what a fitted detector consists of, in a plain sentence;
- `build(encoder, options) -> Scorer`: the model at its start;
- `fit(model, images, job) -> Fitted`: makes it ready to score, in place.

A method with a backbone of its own also has `load_encoder(settings, seed)`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from recap.config import EncoderSettings, PeerSettings
from recap.data.benchmark import Domain
from recap.encoders.draws import seed_draws
from recap.encoders.load import load_encoder
from recap.encoders.text import need_text_tower
from recap.encoders.vit import Encoder
from recap.errors import InputError, SettingsError
from recap.methods.images import LabelledImages, source_images, support_images
from recap.methods.map_scale import scale_of_images
from recap.methods.recap.scorer import Scorer
from recap.methods.registry import Peer, find_peer
from recap.progress import Progress, silent
from recap.scoring.bundle import Mode
from recap.scoring.detector import Detector
from recap.training.assemble import assemble, fingerprint
from recap.training.checkpoint import Checkpoint, open_checkpoint
from recap.training.devices import choose_device, process_count
from recap.training.prefix_store import PrefixStore
from recap.training.support import SupportImage
from recap.training.zeroshot import source_records, source_samples

CACHE_BYTES = 8e9


@dataclass(frozen=True)
class Job:
    """One fit: what it is told, and where it tells how far it is."""

    settings: PeerSettings
    options: Any
    """The method's Options."""
    zero_shot: bool
    progress: Progress
    checkpoint: Checkpoint | None
    """For methods that are trained by gradients; saves and restores whatever requires them."""
    work_dir: Path | None

    def encoded(self, model: Any, images: LabelledImages) -> PrefixStore:
        """`model.prefix(pixels)` of all images; indexed by lists of positions.

        Computed once, unless there is more of it than CACHE_BYTES.
        """
        store = PrefixStore(
            model,
            images.pixels,
            len(images),
            limit_bytes=CACHE_BYTES,
            folder=self.work_dir,
            remedy="Free some space, or choose another disk: unfinished work lies where --out is.",
        )
        store.fill(self.progress)
        return store


@dataclass(frozen=True)
class Fitted:
    """What fitting has to tell beside the model."""

    losses: dict[str, float] = field(default_factory=dict)
    map_scale: tuple[float, float] | None = None
    """Map values drawn from nothing to full strength; None: from the maps of the normal images."""


class Where(TypedDict, total=False):
    """Where a method is fitted, and who hears of it; the same for every way of fitting."""

    work_dir: Path | None
    device: str
    progress: Progress
    encoder: Any


def fit_few_shot(
    support: Sequence[SupportImage],
    settings: PeerSettings,
    *,
    domain: str = "",
    **where: Unpack[Where],
) -> Detector:
    """Fit on the target's own images; `domain` names what they show, for methods with text."""
    peer = find_peer(settings.method)
    ordered = sorted(support, key=lambda item: item.abnormal)  # normals first, else as given
    if all(item.abnormal for item in ordered):
        raise InputError("There are no normal images. Every method needs at least 1.")
    if peer.needs_abnormal and not any(item.abnormal for item in ordered):
        raise InputError(f"{peer.title} needs abnormal images too. Give some with --abnormal.")
    records: list[dict[str, Any]] = [dict(item.record) for item in ordered]
    mode: Mode = "few-shot" if any(item.abnormal for item in ordered) else "normal-only"

    def images(size_px: int) -> LabelledImages:
        return support_images(ordered, size_px, domain)

    return _fit(peer, settings, mode, records, images, domain, **where)


def fit_zero_shot(
    sources: Sequence[Domain], settings: PeerSettings, *, domain: str = "", **where: Unpack[Where]
) -> Detector:
    """Fit on the pools of other domains; `domain` names the one that will be scored."""
    peer = find_peer(settings.method)
    if peer.zero_shot == "no":
        raise InputError(f"{peer.title} has no zero-shot form: it needs images of the target.")
    samples = source_samples(sources, "pool")
    records: list[dict[str, Any]] = [dict(record) for record in source_records(samples)]

    def images(size_px: int) -> LabelledImages:
        return source_images(samples, size_px, settings.reading)

    return _fit(peer, settings, "zero-shot", records, images, domain, **where)


def _fit(
    peer: Peer,
    settings: PeerSettings,
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
    module = peer.module
    if process_count() > 1:
        raise SettingsError(
            f"{peer.title} is fitted by one process: `accelerate launch` shares out fits of "
            "recap's own methods alone. Run `recap fit` without it."
        )
    settings = _with_name(peer, settings, mode, target)
    options, chosen = module.Options(**settings.options), choose_device(device)
    # Before the seed is set: loading may draw numbers for parts that are then thrown away.
    encoder = encoder or encoder_of(peer, settings.encoder, settings.seed)
    with torch.random.fork_rng(devices=[chosen] if chosen.type == "cuda" else []):
        seed_draws(settings.seed, chosen)
        model: Scorer = module.build(encoder, options).to(chosen)
        mark = fingerprint(mode, settings, encoder, records)
        checkpoint = open_checkpoint(work_dir, mark)
        images = images_at(encoder.input_px)
        job = Job(settings, options, mode == "zero-shot", progress, checkpoint, work_dir)
        fitted: Fitted = module.fit(model, images, job)
    model.eval()
    scale = fitted.map_scale or scale_of_images(model, images)
    statement = module.STATEMENT
    if peer.extends(job.zero_shot):
        shots = "Zero-shot" if job.zero_shot else "Few-shot"
        statement += f" {shots} fitting of this kind is an extension of what was published."
    return assemble(model, mode, settings, records, fitted.losses, scale, statement)


def _with_name(peer: Peer, settings: PeerSettings, mode: Mode, target: str) -> PeerSettings:
    """What the text calls the images decides numbers, so it is a setting, whoever gave it."""
    said = peer.uses_text and (mode != "zero-shot" or peer.names_target)
    named = getattr(peer.module.Options(**settings.options), "domain", None)
    if not said or not target or named != "":
        return settings
    return settings.model_copy(update={"options": {**settings.options, "domain": target}})


def encoder_of(peer: Peer, settings: EncoderSettings, seed: int) -> Any:
    """The encoder that a method runs on: one of ours, or its own backbone."""
    if peer.uses_text:
        need_text_tower(settings.name)  # before anyone is told to download what would not do
    own: Callable[[EncoderSettings, int], Encoder] = getattr(
        peer.module, "load_encoder", load_encoder
    )
    return own(settings, seed)
