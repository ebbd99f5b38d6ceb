"""The training loop: plain Adam, a fixed order per seed, the last epoch is the model."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam

from recap.config import TrainingSettings
from recap.errors import TrainingError
from recap.progress import Progress
from recap.training.checkpoint import Checkpoint
from recap.training.devices import Workers, is_main_process
from recap.training.objective import Batch, Objective
from recap.training.prefix_store import PrefixTokens

BETAS = (0.5, 0.999)
SAVE_EVERY_S = 10.0


@dataclass(frozen=True)
class TrainingSet:
    """Frozen tokens and targets of all training images (copies included)."""

    store: PrefixTokens
    abnormal: Tensor  # (N,) bool
    masks: Tensor  # (N, S, S) bool
    has_mask: Tensor  # (N,) bool
    origin: Tensor  # (N,) long
    domain: Tensor  # (N,) long, for balanced sources
    teaches: Tensor  # (N,) bool: whether anything is trained on this image

    def batch(self, indices: list[int], device: torch.device) -> Batch:
        """The chosen images on a device."""
        targets = (self.abnormal, self.masks, self.has_mask, self.origin)
        prefix = self.store[indices].to(device)
        return Batch(prefix, *(target[indices].to(device) for target in targets))


def train(
    objective: Objective,
    data: TrainingSet,
    learning_rate: float,
    progress: Progress,
    checkpoint: Checkpoint | None = None,
) -> dict[str, float]:
    """Train in place and return the mean loss terms of the last epoch."""
    model, settings = objective.model, objective.model.settings
    training = settings.training
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = Adam(parameters, lr=learning_rate, betas=BETAS, fused=True)
    workers = Workers(objective)
    done, last = checkpoint.restore(model, optimiser) if checkpoint else (0, {})
    progress("train", done, training.epochs, _describe(last))
    saved = time.monotonic()
    for epoch in range(done, training.epochs):
        order = epoch_order(data, settings.seed, epoch, training.balance_sources)
        last = _train_epoch(workers, optimiser, data, order, training, epoch)
        if not all(bool(p.isfinite().all()) for p in parameters):  # the last step may do it
            _guard(math.nan, epoch)
        progress("train", epoch + 1, training.epochs, _describe(last))
        due = time.monotonic() - saved > SAVE_EVERY_S or epoch + 1 == training.epochs
        if checkpoint and is_main_process() and due:
            checkpoint.save(model, optimiser, epoch + 1, last)
            saved = time.monotonic()
    return last


def epoch_order(data: TrainingSet, seed: int, epoch: int, balanced: bool) -> list[int]:
    """The order of one epoch: a function of seed and epoch alone, so that a resumed run agrees."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    images = data.teaches.nonzero().flatten()
    if not balanced:
        return images[torch.randperm(len(images), generator=generator)].tolist()
    domain = data.domain[images]
    weights = 1.0 / torch.bincount(domain)[domain]
    drawn = torch.multinomial(weights, len(images), replacement=True, generator=generator)
    return images[drawn].tolist()


def _train_epoch(
    workers: Workers,
    optimiser: Adam,
    data: TrainingSet,
    order: list[int],
    training: TrainingSettings,
    epoch: int,
) -> dict[str, float]:
    means: dict[str, float] = {}
    for indices in _chunks(order, training.batch_size):
        terms = workers.backward(data, indices)
        _guard(terms["loss"], epoch)
        if training.clip_norm is not None:
            clip_grad_norm_(optimiser.param_groups[0]["params"], training.clip_norm)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        for name, value in terms.items():
            means[name] = means.get(name, 0.0) + value * len(indices) / len(order)
    return means


def _guard(loss: float, epoch: int) -> None:
    if not math.isfinite(loss):
        raise TrainingError(
            f"The loss became {loss} in epoch {epoch + 1}; training stopped before this "
            "step. Lower training.learning_rate (--set training.learning_rate=1e-4) "
            "or look for damaged support images."
        )


def _chunks(order: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _describe(means: dict[str, float]) -> str:
    if not means:
        return ""
    return (
        f"loss {means['loss']:.3f} (seg {means['segmentation']:.3f}, "
        f"det {means['detection']:.3f}, sep {means['separation']:.3f})"
    )
