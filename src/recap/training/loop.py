"""Training our own head: plain Adam, a fixed order per seed, the last epoch is the model."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam

from recap.progress import Progress
from recap.training.checkpoint import Checkpoint, Terms
from recap.training.devices import Workers
from recap.training.epochs import in_batches, train_epochs
from recap.training.objective import Batch, Objective
from recap.training.prefix_store import PrefixTokens

BETAS = (0.5, 0.999)
REMEDY = "Lower training.learning_rate (--set training.learning_rate=1e-4)"


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
) -> Terms:
    """Train in place and return the mean loss terms of the last epoch."""
    model, settings = objective.model, objective.model.settings
    training = settings.training
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = Adam(parameters, lr=learning_rate, betas=BETAS, fused=True)
    workers = Workers(objective)

    def plan(epoch: int) -> list[list[int]]:
        order = epoch_order(data, settings.seed, epoch, training.balance_sources)
        return in_batches(order, training.batch_size)

    def gradients(indices: list[int], number: int) -> Terms:
        terms = workers.backward(data, indices)
        if training.clip_norm is not None:
            clip_grad_norm_(parameters, training.clip_norm)
        return terms

    return train_epochs(
        model,
        optimiser,
        training.epochs,
        plan,
        gradients,
        progress=progress,
        checkpoint=checkpoint,
        describe=_describe,
        remedy=REMEDY,
    )


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


def _describe(means: dict[str, float]) -> str:
    if not means:
        return ""
    return (
        f"loss {means['loss']:.3f} (seg {means['segmentation']:.3f}, "
        f"det {means['detection']:.3f}, sep {means['separation']:.3f})"
    )
