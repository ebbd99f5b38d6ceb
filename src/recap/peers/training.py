"""One training loop for all methods that are trained by gradients; the last epoch is the model."""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from recap.errors import TrainingError
from recap.peers.fitting import Job

SAVE_EVERY_S = 10.0

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

    Returns the mean loss of the last epoch.

    `schedule` is asked for every group of the optimiser; `bound` is called when a step has its
    gradients, to shorten those that are too long. Order and dropout of an epoch depend on the
    seed and the epoch alone, so that a fit that was interrupted ends as one that was not.
    """
    batch_size, checkpoint, progress = job.options.batch_size, job.checkpoint, job.progress
    rates = [group["lr"] for group in optimiser.param_groups]
    done, last = checkpoint.restore(model, optimiser) if checkpoint else (0, {})
    mean, saved = last.get("loss", 0.0), time.monotonic()
    progress("train", done, epochs, "")
    model.train()
    for epoch in range(done, epochs):
        for group, start in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = schedule(start, epoch)
        torch.manual_seed((job.settings.seed * 1_000_003 + epoch) % 2**63)
        order, total = torch.randperm(count).tolist(), 0.0
        for first in range(0, count, batch_size):
            indices = order[first : first + batch_size]
            total += _step(loss, optimiser, indices, epoch, bound) * len(indices)
        mean = total / count
        progress("train", epoch + 1, epochs, f"loss {mean:.3f}")
        if checkpoint and (time.monotonic() - saved > SAVE_EVERY_S or epoch + 1 == epochs):
            checkpoint.save(model, optimiser, epoch + 1, {"loss": mean})
            saved = time.monotonic()
    model.eval()
    return mean


def cosine_to(end: float, epochs: int) -> Schedule:
    """Rates that go from where they start along a half cosine towards `end`, one for all."""
    return lambda start, epoch: end + (start - end) * (1 + math.cos(math.pi * epoch / epochs)) / 2


def _step(
    loss: Loss,
    optimiser: Optimizer,
    indices: list[int],
    epoch: int,
    bound: Callable[[], object],
) -> float:
    optimiser.zero_grad(set_to_none=True)
    value = loss(indices)
    if not bool(value.isfinite()):
        raise TrainingError(
            f"The loss became {float(value)} in epoch {epoch + 1}; training stopped before this "
            "step. Lower the learning rate, or look for damaged support images."
        )
    value.backward()
    bound()
    optimiser.step()
    return float(value.detach())
