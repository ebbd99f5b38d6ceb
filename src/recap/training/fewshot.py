"""Few-shot fitting on the target's own support images."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from recap.config import Settings
from recap.encoders.vit import Encoder
from recap.errors import InputError
from recap.methods.recap.appearance import appearance, solve_appearance
from recap.methods.recap.build import new_model
from recap.methods.recap.head import ReCAP, Teacher
from recap.methods.recap.join import join_heads
from recap.methods.recap.tokens import Tokens
from recap.progress import Progress, silent
from recap.scoring.detector import Detector
from recap.training.assemble import MAPS_FROM_LESIONS, assemble, fingerprint
from recap.training.checkpoint import open_checkpoint
from recap.training.devices import choose_device
from recap.training.display import map_scale
from recap.training.estimate import with_estimate
from recap.training.head import (
    adapted,
    frozen_tokens,
    originals,
    train_head,
    training_set,
    with_copies,
)
from recap.training.left_out import left_out_appearance, normal_distance
from recap.training.lesion_head import (
    MOST_TEACHING,
    Lesions,
    copy_numbers,
    lesions_on,
    train_on_lesions,
)
from recap.training.loop import TrainingSet
from recap.training.normal_only import fit_normal_only
from recap.training.prefix_store import PrefixStore, SomeOf
from recap.training.support import (
    SupportImage,
    spread_over,
    stack_support,
    supervised_maps,
    support_records,
)


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
    if not abnormal.any():
        return fit_normal_only(support, settings, work_dir, device, progress, encoder)
    taught_by: Teacher = "masks" if any(supervised_maps(support)) else "labels"
    model = new_model(settings, encoder=encoder, taught_by=taught_by).to(choose_device(device))
    records = support_records(support)
    mark = fingerprint("few-shot", settings, model.encoder, records)
    checkpoint = open_checkpoint(work_dir, mark)
    pixels, masks = stack_support(support, model.encoder.input_px)
    copies, copied_masks = with_copies(pixels, masks, settings)
    learns_labels = model.single == "labels"
    lesions = _lesions_for_maps(copies, int((~abnormal).sum()), settings) if learns_labels else None
    shown = copies if lesions is None else torch.cat([copies, lesions.pixels])
    store = frozen_tokens(model, shown.__getitem__, len(shown), work_dir, progress)
    data = training_set(
        SomeOf(store, range(len(copies))),
        copied_masks,
        abnormal.tolist(),
        supervised_maps(support),
        settings,
    )
    losses = train_head(model, data, progress, checkpoint)
    statement = None
    if lesions is not None:
        statement = MAPS_FROM_LESIONS
        maps_dir = work_dir / "maps" if work_dir is not None else None
        maps, map_losses = _fit_maps(model, store, lesions, maps_dir, mark, progress)
        model, losses = join_heads(maps, model), _summed(losses, map_losses)
    tokens, remembered = _remember(model, data)
    whole = None
    if learns_labels:
        whole = _learn_labels(model, data, abnormal, tokens, remembered)
    normal_pixels = pixels[~abnormal]
    scale = map_scale(model, tokens, normal_pixels, remembered)
    detector = assemble(model, "few-shot", settings, records, losses, scale, statement)
    descriptors = _of_originals(model.describe, model, data)
    return with_estimate(detector, tokens, normal_pixels, remembered, descriptors, whole)


def _lesions_for_maps(copies: Tensor, normal_count: int, settings: Settings) -> Lesions | None:
    """Lesions on some of the normal images, which come first; none if the settings want none."""
    if not settings.training.made_up_lesions:
        return None
    chosen = spread_over(normal_count, MOST_TEACHING)
    return lesions_on(copies, copy_numbers(chosen, settings), settings)


def _fit_maps(
    scores: ReCAP,
    store: PrefixStore,
    lesions: Lesions,
    work_dir: Path | None,
    mark: str,
    progress: Progress,
) -> tuple[ReCAP, dict[str, float]]:
    """A head for maps beside one for scores that labels alone taught, and its last losses.

    What labels teach tells images apart, wherever that shows; a map should show what is unlike
    normal tissue. Each head is trained as if it were alone.
    """
    maps = new_model(scores.settings, encoder=scores.encoder, taught_by="masks").to(scores.device)
    numbers = [*lesions.made_on, *range(len(store) - len(lesions.masks), len(store))]

    def of_maps(stage: str, done: int, total: int, detail: str) -> None:
        progress(f"{stage}_maps", done, total, detail)

    tokens, checkpoint = SomeOf(store, numbers), open_checkpoint(work_dir, mark)
    return maps, train_on_lesions(maps, tokens, lesions.masks, of_maps, checkpoint)


def _summed(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {name: value + other[name] for name, value in one.items()}


def _remember(model: ReCAP, data: TrainingSet) -> tuple[Tokens, Tokens]:
    """Tokens of the normal images after training, and those that the memory is made of."""
    tokens = remembered = adapted(model, data, originals(data, abnormal=False))
    if model.settings.memory.augmented:
        every_copy = (~data.abnormal).nonzero().flatten().tolist()
        remembered = adapted(model, data, every_copy)
    model.remember(remembered)
    return tokens, remembered


@torch.no_grad()
def _learn_labels(
    model: ReCAP,
    data: TrainingSet,
    abnormal: Tensor,
    normal: Tokens,
    remembered: Tokens,
) -> Tensor | None:
    """What scores without masks rest on beside the prototypes; all of it has a closed form.

    Returns the evidence of the normal images as a whole, each from the others.
    """
    if model.settings.memory.score == "standardised":
        model.normal_distance = normal_distance(model, normal, remembered)
    if model.settings.model.appearance_weight == 0:
        return None
    vectors = _of_originals(lambda prefix: appearance(model.frozen_patches(prefix)), model, data)
    model.appearance_direction = solve_appearance(vectors, abnormal)
    return left_out_appearance(vectors, abnormal)


def _of_originals(describe: Callable[[Tensor], Tensor], model: ReCAP, data: TrainingSet) -> Tensor:
    """A vector of each support image, without their copies: (n, D)."""
    return torch.cat([describe(data.store[[i]].to(model.device)) for i in originals(data)])
