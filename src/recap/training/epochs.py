"""Going through the epochs of a fit: says how far it is, and can be stopped after any step."""

import math
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

from recap.errors import TrainingError
from recap.progress import Progress
from recap.training.checkpoint import Checkpoint, Place, Terms
from recap.training.devices import is_main_process
from recap.training.thread_choice import training_threads

SAVE_EVERY_S = 30.0

Plan = Callable[[int], list[list[int]]]
"""An epoch, counted from 0 -> its batches: positions of images. All epochs have as many."""
Gradients = Callable[[list[int], int], Terms]
"""A batch and the number of its step since the start -> the loss and its terms, as gradients."""


def train_epochs(
    model: nn.Module,
    optimiser: Optimizer,
    epochs: int,
    plan: Plan,
    gradients: Gradients,
    *,
    progress: Progress,
    checkpoint: Checkpoint | None,
    describe: Callable[[Terms], str],
    remedy: str,
) -> Terms:
    """Train in place and return the mean loss terms of the last epoch.

    Goes on from the checkpoint, if there is one. A step may depend on its number and on what is
    saved alone; then a fit that was interrupted ends as one that was not. `remedy` is what to do
    where numbers become infinite.
    """
    place = checkpoint.restore(model, optimiser) if checkpoint else Place()
    first, saved = plan(0), time.monotonic()
    steps = len(first)

    def tell() -> None:
        done = place.epoch * steps + place.step
        progress("train", done, epochs * steps, describe(place.last))

    def try_step() -> None:
        with torch.random.fork_rng(devices=[]):
            gradients(first[0], 0)
        optimiser.zero_grad(set_to_none=True)

    tell()
    with training_threads(model, try_step, epochs * steps):
        while steps and place.epoch < epochs:
            epoch, batches = place.epoch, plan(place.epoch)
            images = sum(map(len, batches))
            for indices in batches[place.step :]:
                terms = gradients(indices, epoch * steps + place.step)
                if not math.isfinite(terms["loss"]):
                    raise _infinite(f"The loss became {terms['loss']}", epoch, remedy)
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
                place = place.after(terms, len(indices) / images, steps)
                tell()
                due = time.monotonic() - saved > SAVE_EVERY_S or place.epoch == epochs
                if not due and place.step > 0:
                    continue
                if not all(bool(p.isfinite().all()) for p in model.parameters() if p.requires_grad):
                    raise _infinite("A parameter became infinite", epoch, remedy)
                if due and checkpoint and is_main_process():
                    checkpoint.save(model, optimiser, place)
                    saved = time.monotonic()
    return place.last


def in_batches(order: list[int], size: int) -> list[list[int]]:
    """Cut the order of an epoch; the last batch may be smaller."""
    return [order[start : start + size] for start in range(0, len(order), size)]


def _infinite(what: str, epoch: int, remedy: str) -> TrainingError:
    return TrainingError(
        f"{what} in epoch {epoch + 1}; training stopped there. {remedy}, or look for damaged "
        "support images."
    )
