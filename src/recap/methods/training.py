"""One training loop for all methods that are trained by gradients; the last epoch is the model."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from recap.encoders.draws import seed_draws
from recap.methods.fitting import Job
from recap.training.checkpoint import Terms
from recap.training.epochs import in_batches, train_epochs

REMEDY = "Lower the learning rate"

Loss = Callable[[list[int]], Tensor]
"""Positions of the images of a batch -> the loss to be minimised."""
Schedule = Callable[[float, int], float]
"""The learning rate at the start, the epoch counted from 0 -> the learning rate of that epoch."""


def train(
    model: nn.Module,
    loss: Loss,
    optimiser: Optimizer,
    count: int,
    job: Job,
    *,
    epochs: int,
    schedule: Schedule = lambda start, epoch: start,
    bound: Callable[[], object] = lambda: None,
) -> float:
    """Train on `count` images in batches of `job.options.batch_size`.

    Returns the mean loss of the last epoch. `schedule` is asked for every group of the optimiser;
    `bound` is called when a step has its gradients, to shorten those that are too long.
    """
    seed, batch_size = job.settings.seed, job.options.batch_size
    rates = [group["lr"] for group in optimiser.param_groups]
    steps = math.ceil(count / batch_size)
    device = next(model.parameters()).device

    def plan(epoch: int) -> list[list[int]]:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(_mixed(seed, epoch)))
        return in_batches(order.tolist(), batch_size)

    def gradients(indices: list[int], number: int) -> Terms:
        for group, start in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = schedule(start, number // steps)
        # Dropout and whatever else a method draws depends on the seed and the step alone.
        seed_draws(_mixed(seed, number), device)
        value = loss(indices)
        value.backward()
        bound()
        return {"loss": float(value.detach())}

    model.train()
    last = train_epochs(
        model,
        optimiser,
        epochs,
        plan,
        gradients,
        progress=job.progress,
        checkpoint=job.checkpoint,
        describe=lambda terms: f"loss {terms['loss']:.3f}" if terms else "",
        remedy=REMEDY,
    )
    model.eval()
    return last["loss"]


def cosine_to(end: float, epochs: int) -> Schedule:
    """Rates that go from where they start along a half cosine towards `end`, one for all."""
    return lambda start, epoch: end + (start - end) * (1 + math.cos(math.pi * epoch / epochs)) / 2


def _mixed(seed: int, number: int) -> int:
    return (seed * 1_000_003 + number) % 2**63
