"""Zero-shot fitting: train on every other domain, never on the one to be tested."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recap.config import ReadingSettings, Settings
from recap.data.benchmark import Domain
from recap.data.supports import support_hashes
from recap.encoders.vit import Encoder
from recap.errors import InputError, SettingsError
from recap.io import read_image
from recap.io.raster import read_mask_of
from recap.io.resize import SquareResize
from recap.io.window import parse_window
from recap.methods.recap.build import new_model
from recap.methods.recap.class_tokens import class_vectors, solve_sources
from recap.methods.recap.head import ReCAP, Teacher
from recap.methods.recap.tokens import Tokens, concatenate
from recap.progress import Progress, silent
from recap.scoring.detector import Detector
from recap.training import display
from recap.training.assemble import assemble, fingerprint
from recap.training.checkpoint import open_checkpoint
from recap.training.devices import choose_device
from recap.training.head import frozen_tokens
from recap.training.loop import TrainingSet, train
from recap.training.objective import Objective
from recap.training.prefix_store import PrefixStore
from recap.types import Sample

LEARNING_RATE = 5e-4


def fit_zero_shot(
    sources: Sequence[Domain],
    settings: Settings,
    *,
    work_dir: Path | None = None,
    device: str = "auto",
    progress: Progress = silent,
    encoder: Encoder | None = None,
) -> Detector:
    """Fit on the labelled pools of the source domains; there is no memory."""
    if settings.model.zero_shot_score == "class_tokens" and settings.model.write_back:
        raise SettingsError(
            'model.zero_shot_score = "class_tokens" needs side adapters: tokens that adapters '
            "write into are no longer the encoder's own. Set model.write_back = false, or "
            'model.zero_shot_score = "prototypes".'
        )
    samples = source_samples(sources, settings.training.source_split)
    taught_by = choose_teacher(settings, any(sample.mask for sample in samples))
    model = new_model(settings, encoder=encoder, taught_by=taught_by).to(choose_device(device))
    records = source_records(samples)
    mark = fingerprint("zero-shot", settings, model.encoder, records)
    checkpoint = open_checkpoint(work_dir, mark)
    # Before the encoder runs: a mask that cannot be read is told at once.
    targets = source_masks(samples, model.encoder.input_px, settings.reading)
    store = frozen_tokens(
        model,
        lambda index: square_pixels(samples[index], model.encoder.input_px, settings.reading),
        len(samples),
        work_dir,
        progress,
    )
    data = _training_set(model, samples, store, *targets)
    if settings.model.prototype_init == "source_means":
        _start_at_source_means(model, data)
    rate = settings.training.learning_rate or LEARNING_RATE
    losses = train(Objective(model), data, rate, progress, checkpoint)
    if settings.model.zero_shot_score == "class_tokens":
        model.class_direction = _class_direction(model, data)
    return assemble(model, "zero-shot", settings, records, losses, display.ZERO_SHOT)


def choose_teacher(settings: Settings, has_masks: bool) -> Teacher | None:
    """What a single branch learns from, if one is enough (and the settings ask for one).

    Without masks a seg branch would keep its random start: the branch that labels teach draws the
    map too. With masks a det branch is for the score alone, which class tokens may give instead.
    """
    if not has_masks:
        return "labels"
    return "masks" if settings.model.zero_shot_score == "class_tokens" else None


def leave_one_out(domains: Sequence[Domain], target: str) -> list[Domain]:
    """The sources for a held-out target: all other domains."""
    names = [domain.name for domain in domains]
    if target not in names:
        raise InputError(f"There is no domain '{target}'. Found: {', '.join(names) or 'none'}.")
    sources = [domain for domain in domains if domain.name != target]
    if not sources:
        raise InputError(f"'{target}' is the only domain. Zero-shot needs at least one other.")
    return sources


def source_samples(sources: Sequence[Domain], split: str) -> list[Sample]:
    """All labelled images of the sources; both classes must be there."""
    samples = [s for d in sources for s in (d.pool() if split == "pool" else d.test())]
    for abnormal, word in ((False, "normal"), (True, "abnormal")):
        if not any(sample.abnormal == abnormal for sample in samples):
            raise InputError(f"The source domains have no {word} images.")
    return samples


def source_records(samples: Sequence[Sample]) -> list[dict[str, str | None]]:
    """What the bundle keeps of each source image: its domain too."""
    records = support_hashes(samples)
    return [{**r, "domain": s.domain} for r, s in zip(records, samples, strict=True)]


def _training_set(
    model: ReCAP, samples: list[Sample], store: PrefixStore, masks: Tensor, has_mask: Tensor
) -> TrainingSet:
    names = sorted({sample.domain for sample in samples})
    return TrainingSet(
        store=store,
        abnormal=torch.tensor([sample.abnormal for sample in samples]),
        masks=masks,
        has_mask=has_mask,
        origin=torch.arange(len(samples)),
        domain=torch.tensor([names.index(sample.domain) for sample in samples]),
        # What a domain without masks could teach is a score, and class tokens give that.
        teaches=has_mask if model.single == "masks" else torch.ones_like(has_mask),
    )


def source_masks(
    samples: Sequence[Sample], size_px: int, reading: ReadingSettings
) -> tuple[Tensor, Tensor]:
    """Masks at the encoder's input size (N, S, S), and whose maps they supervise (N,).

    That is abnormal images with a mask that marks something, and the normal ones of their domains.
    An abnormal image without one is no image without a lesion: its map is left alone.
    """
    parse_window(reading.window)  # pictures have no need of it, but what is scored later may
    masks = torch.stack([square_mask(sample, size_px, reading) for sample in samples])
    marked = masks.flatten(1).any(dim=1)
    if not marked.any() and any(sample.mask for sample in samples):
        raise InputError("The masks of the source domains mark nothing. Look at one of them.")
    domains = {
        sample.domain for sample, there in zip(samples, marked.tolist(), strict=True) if there
    }
    healthy = [not sample.abnormal and sample.domain in domains for sample in samples]
    return masks, marked | torch.tensor(healthy)


def square_pixels(sample: Sample, size_px: int, reading: ReadingSettings) -> Tensor:
    """A sample's pixels at the encoder's input size: (3, S, S) in 0..1."""
    image = read_image(sample.path, reading)
    square = SquareResize(image.size_hw, size_px).apply(image.pixels)
    return torch.from_numpy(square).permute(2, 0, 1)


def square_mask(sample: Sample, size_px: int, reading: ReadingSettings) -> Tensor:
    """A sample's mask at the encoder's input size, empty where it has none: (S, S) bool."""
    if sample.mask is None:
        return torch.zeros(size_px, size_px, dtype=torch.bool)
    mask = read_mask_of(read_image(sample.path, reading), sample.mask)
    square = SquareResize((mask.shape[0], mask.shape[1]), size_px).apply_mask(mask)
    return torch.from_numpy(np.ascontiguousarray(square))


@torch.no_grad()
def _class_direction(model: ReCAP, data: TrainingSet) -> Tensor:
    """Which way class tokens of the source domains differ, all domains alike."""
    found = [
        class_vectors(model.encoder.class_tokens(data.store[[index]].to(model.device)))
        for index in range(len(data.store))
    ]
    return solve_sources(torch.cat(found), data.abnormal, data.domain)


@torch.no_grad()
def _start_at_source_means(model: ReCAP, data: TrainingSet) -> None:
    """Class means over all source patches, one image at a time."""
    device = model.device
    means: list[list[Tokens]] = [[], []]
    for index in range(len(data.store)):
        tokens = model.adapt(data.store[[index]].to(device))
        # Every image has as many patches as any other, so the mean of means is the mean.
        pooled = [(seg.mean(1, keepdim=True), det.mean(1, keepdim=True)) for seg, det in tokens]
        means[int(data.abnormal[index])].append(pooled)
    model.start_prototypes(concatenate(means[0]), concatenate(means[1]))
