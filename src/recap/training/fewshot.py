"""Few-shot fitting on the target's own support images, and fitting on normal images alone."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from recap.config import Settings
from recap.data.augment import COPIES, augment
from recap.encoders.vit import Encoder
from recap.errors import InputError, SettingsError
from recap.model.appearance import appearance, solve_appearance
from recap.model.build import new_model
from recap.model.principal import Spread
from recap.model.recap import ReCAP, Teacher, Tokens, concatenate
from recap.scoring.detector import Detector
from recap.training.assemble import assemble, fingerprint
from recap.training.checkpoint import Checkpoint
from recap.training.devices import choose_device, process_count
from recap.training.display import map_scale
from recap.training.estimate import with_estimate
from recap.training.left_out import left_out_appearance, normal_distance
from recap.training.loop import TrainingSet, train
from recap.training.objective import Objective
from recap.training.prefix_store import PrefixStore
from recap.training.progress import Progress, silent
from recap.training.support import SupportImage, stack_support, supervised_maps

LEARNING_RATE = 1e-3


def fit_few_shot(
    support: list[SupportImage],
    settings: Settings,
    *,
    work_dir: Path | None = None,
    device: str = "auto",
    progress: Progress = silent,
    encoder: Encoder | None = None,
) -> Detector:
    """Fit on labelled support images; with normal ones alone the memory is all there is.

    With `work_dir` an interrupted fit goes on where it stopped.
    """
    support = sorted(support, key=lambda item: item.abnormal)  # normals first, else as given
    abnormal = torch.tensor([item.abnormal for item in support])
    if abnormal.all():
        raise InputError("There are no normal images. A memory of normal patches needs at least 1.")
    taught_by: Teacher = "masks" if any(supervised_maps(support)) else "labels"
    model = new_model(settings, bool(abnormal.any()), encoder, taught_by)
    model = model.to(choose_device(device))
    normals = [item for item in support if not item.abnormal]
    pixels, _ = stack_support(normals, model.encoder.input_px)
    records = [{**item.record, "size_hw": list(item.image.size_hw)} for item in support]
    if not abnormal.any():
        tokens, descriptors = _frozen_tokens(model, pixels, progress)
        model.remember(tokens)
        scale = map_scale(model, tokens, pixels)
        detector = assemble(model, "normal-only", settings, records, {}, scale)
        return with_estimate(detector, tokens, pixels, tokens, descriptors)
    checkpoint = None
    if work_dir is not None:
        checkpoint = Checkpoint(work_dir, fingerprint("few-shot", settings, model.encoder, records))
    data = _training_set(model, support, settings, work_dir)
    data.store.fill(progress)
    losses, tokens, remembered = _train(model, data, abnormal, settings, progress, checkpoint)
    whole = None
    if model.single == "labels":
        whole = _learn_labels(model, data, abnormal, settings, tokens, remembered)
    scale = map_scale(model, tokens, pixels)
    detector = assemble(model, "few-shot", settings, records, losses, scale)
    descriptors = _of_originals(model.describe, model, data, len(support))
    return with_estimate(detector, tokens, pixels, remembered, descriptors, whole)


def _training_set(
    model: ReCAP, support: list[SupportImage], settings: Settings, work_dir: Path | None
) -> TrainingSet:
    pixels, masks = stack_support(support, model.encoder.input_px)
    copies = 1
    if settings.training.augment:
        pixels, masks = augment(pixels, masks)
        copies = COPIES
    store = PrefixStore(
        model,
        pixels.__getitem__,
        len(pixels),
        limit_bytes=settings.training.cache_gb * 1e9,
        # Several processes would write the same file; each keeps its own tokens instead.
        folder=work_dir if process_count() == 1 else None,
    )
    origin = torch.arange(len(support)).repeat_interleave(copies)
    return TrainingSet(
        store=store,
        abnormal=torch.tensor([item.abnormal for item in support])[origin],
        masks=masks,
        has_mask=torch.tensor(supervised_maps(support))[origin],
        origin=origin,
        domain=torch.zeros_like(origin),
        teaches=torch.ones_like(origin, dtype=torch.bool),
    )


def _train(
    model: ReCAP,
    data: TrainingSet,
    abnormal: Tensor,
    settings: Settings,
    progress: Progress,
    checkpoint: Checkpoint | None,
) -> tuple[dict[str, float], Tokens, Tokens]:
    """The last losses, the tokens of the normal images, and those that the memory is made of."""
    copies = len(data.origin) // len(abnormal)
    normals = (copies * (~abnormal).nonzero().flatten()).tolist()
    abnormals = (copies * abnormal.nonzero().flatten()).tolist()
    if model.starts_principal:
        model.start_adapters(_spreads(model, data))
    model.start_prototypes(_adapt(model, data, normals), _adapt(model, data, abnormals))
    objective = Objective(model, settings, _leave_one_out(model, data, normals, settings))
    rate = settings.training.learning_rate or LEARNING_RATE
    losses = train(objective, data, settings, rate, progress, checkpoint)
    tokens = remembered = _adapt(model, data, normals)
    if settings.memory.augmented:
        every_copy = (~data.abnormal).nonzero().flatten().tolist()
        remembered = _adapt(model, data, every_copy)
    model.remember(remembered)
    return losses, tokens, remembered


def _spreads(model: ReCAP, data: TrainingSet) -> list[Spread]:
    """How the tokens of each layer differ, over all copies of all images."""
    spreads = [Spread(model.encoder.width) for _ in model.encoder.layers]
    for index in range(len(data.origin)):
        for spread, tokens in zip(spreads, model.taps(data.store[[index]]), strict=True):
            spread.add(tokens)
    return spreads


def _leave_one_out(
    model: ReCAP, data: TrainingSet, normals: list[int], settings: Settings
) -> Tensor | None:
    if not settings.training.train_with_memory:
        return None
    if len(normals) < 2:
        raise SettingsError("training.train_with_memory needs at least 2 normal images, got 1.")
    return data.store[normals].to(model.device)


@torch.no_grad()
def _adapt(model: ReCAP, data: TrainingSet, indices: list[int]) -> Tokens:
    """Scoring tokens of some images, adapted one by one."""
    device = model.device
    return concatenate([model.adapt(data.store[[i]].to(device)) for i in indices])


@torch.no_grad()
def _learn_labels(
    model: ReCAP,
    data: TrainingSet,
    abnormal: Tensor,
    settings: Settings,
    normal: Tokens,
    remembered: Tokens,
) -> Tensor | None:
    """What scores without masks rest on beside the prototypes; all of it has a closed form.

    Returns the evidence of the normal images as a whole, each from the others.
    """
    if settings.memory.score == "standardised":
        model.normal_distance = normal_distance(model, normal, remembered)
    if settings.model.appearance_weight == 0:
        return None
    vectors = _of_originals(
        lambda prefix: appearance(model.frozen_patches(prefix)), model, data, len(abnormal)
    )
    model.appearance_direction = solve_appearance(vectors, abnormal)
    return left_out_appearance(vectors, abnormal)


def _of_originals(
    describe: Callable[[Tensor], Tensor], model: ReCAP, data: TrainingSet, images: int
) -> Tensor:
    """A vector of each support image, without their copies: (n, D)."""
    originals = range(0, len(data.origin), len(data.origin) // images)
    return torch.cat([describe(data.store[[i]].to(model.device)) for i in originals])


@torch.no_grad()
def _frozen_tokens(model: ReCAP, pixels: Tensor, progress: Progress) -> tuple[Tokens, Tensor]:
    """Tokens of all images, and their descriptors (n, D)."""
    tokens, descriptors = [], []
    for index, image in enumerate(pixels):
        progress("encode", index, len(pixels), "")
        prefix = model.prefix(image[None].to(model.device))
        tokens.append(model.adapt(prefix))
        descriptors.append(model.describe(prefix))
    progress("encode", len(pixels), len(pixels), "")
    return concatenate(tokens), torch.cat(descriptors)
