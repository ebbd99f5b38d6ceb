"""Training a head: what it is shown, where it starts, and what becomes of its tokens."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from recap.config import Settings
from recap.data.augment import COPIES, augment
from recap.errors import SettingsError
from recap.methods.recap.head import ReCAP
from recap.methods.recap.principal import Spread
from recap.methods.recap.tokens import Tokens, concatenate
from recap.progress import Progress
from recap.training.checkpoint import Checkpoint
from recap.training.devices import process_count
from recap.training.loop import TrainingSet, train
from recap.training.objective import Objective
from recap.training.prefix_store import PrefixStore, PrefixTokens

LEARNING_RATE = 1e-3


def with_copies(pixels: Tensor, masks: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
    """All copies of each image and mask that the settings ask for, those of one image together."""
    return augment(pixels, masks) if settings.training.augment else (pixels, masks)


def copies_of(settings: Settings) -> int:
    """How many copies of an image stand together, itself included."""
    return COPIES if settings.training.augment else 1


def frozen_tokens(
    model: ReCAP,
    image: Callable[[int], Tensor],
    count: int,
    work_dir: Path | None,
    progress: Progress,
) -> PrefixStore:
    """Frozen tokens of `count` images, each encoded once; `image` gives the pixels (3, S, S)."""
    store = PrefixStore(
        model,
        image,
        count,
        limit_bytes=model.settings.training.cache_gb * 1e9,
        # Several processes would write the same file; each keeps its own tokens instead.
        folder=work_dir if process_count() == 1 else None,
        remedy="Free some space, or do without the file by --set training.cache_gb=0 (slower).",
    )
    store.fill(progress)
    return store


def training_set(
    store: PrefixTokens,
    masks: Tensor,
    abnormal: Sequence[bool],
    has_mask: Sequence[bool],
    settings: Settings,
) -> TrainingSet:
    """Images with all their copies, and what is known of each image (n,)."""
    origin = torch.arange(len(abnormal)).repeat_interleave(copies_of(settings))
    return TrainingSet(
        store=store,
        abnormal=torch.tensor(abnormal)[origin],
        masks=masks,
        has_mask=torch.tensor(has_mask)[origin],
        origin=origin,
        domain=torch.zeros_like(origin),
        teaches=torch.ones_like(origin, dtype=torch.bool),
    )


def train_head(
    model: ReCAP,
    data: TrainingSet,
    progress: Progress,
    checkpoint: Checkpoint | None,
) -> dict[str, float]:
    """Start adapters and prototypes from the images themselves, and train; the last losses."""
    normals, abnormals = originals(data, False), originals(data, True)
    if model.starts_principal:
        model.start_adapters(_spreads(model, data))
    model.start_prototypes(adapted(model, data, normals), adapted(model, data, abnormals))
    objective = Objective(model, _leave_one_out(model, data, normals))
    rate = model.settings.training.learning_rate or LEARNING_RATE
    return train(objective, data, rate, progress, checkpoint)


def originals(data: TrainingSet, abnormal: bool | None = None) -> list[int]:
    """Where the images themselves stand among their copies; of one class, or all."""
    # A lesion that was made up on an image has the image's origin, and the other class.
    kind = 2 * data.origin + data.abnormal
    first = kind.diff(prepend=kind.new_tensor([-1])) != 0
    if abnormal is not None:
        first = first & (data.abnormal == abnormal)
    return first.nonzero().flatten().tolist()


@torch.no_grad()
def adapted(model: ReCAP, data: TrainingSet, indices: list[int]) -> Tokens:
    """Scoring tokens of some images, adapted one by one."""
    device = model.device
    return concatenate([model.adapt(data.store[[i]].to(device)) for i in indices])


def _spreads(model: ReCAP, data: TrainingSet) -> list[Spread]:
    """How the tokens of each layer differ, over all copies of all images."""
    spreads = [Spread(model.encoder.width) for _ in model.encoder.layers]
    for index in range(len(data.origin)):
        for spread, tokens in zip(spreads, model.taps(data.store[[index]]), strict=True):
            spread.add(tokens)
    return spreads


def _leave_one_out(model: ReCAP, data: TrainingSet, normals: list[int]) -> Tensor | None:
    if not model.settings.training.train_with_memory:
        return None
    if len(normals) < 2:
        raise SettingsError("training.train_with_memory needs at least 2 normal images, got 1.")
    return data.store[normals].to(model.device)
