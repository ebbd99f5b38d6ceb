"""Training by gradients: where it runs, how it goes through its epochs, and one loop for methods.

It says how far it is, can be stopped after any step, and the last epoch is the model.

All threads train, or one where steps are so small that threads only wait. That is measured on the
first step of a fit and kept for this machine, so that the same fit has the same threads, and with
them the same bytes, the next time. Who sets OMP_NUM_THREADS has exactly those.
"""

import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from recap._files import locked, write_atomic
from recap.encoders.load import seed_draws
from recap.encoders.weights import cache_dir
from recap.errors import InputError, SettingsError, TrainingError
from recap.methods.checkpoint import Checkpoint, Place, Terms
from recap.methods.fitting import Job
from recap.progress import Progress
from recap.threads import threads_are_given

FILE = "training-threads.json"
FEWEST_STEPS = 50
"""A shorter training is over before a measurement pays."""
ROUNDS, SECONDS = 5, 0.5
"""Steps of each kind that are timed, and when to be content with fewer."""


@contextmanager
def training_threads(model: nn.Module, step: Callable[[], object], steps: int) -> Iterator[None]:
    """Train on as many threads as are fastest for `step`, which may be run any number of times."""
    before = torch.get_num_threads()
    torch.set_num_threads(_chosen(model, step, steps, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _chosen(model: nn.Module, step: Callable[[], object], steps: int, most: int) -> int:
    device = next(model.parameters()).device
    if most == 1 or device.type != "cpu" or threads_are_given():
        return most
    # Everything that decides which number is the fastest, as far as it is known beforehand.
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    parts = (platform.node(), f"{most} threads", f"torch {torch.__version__}")
    key = ", ".join((*parts, f"{type(model).__name__} with {trained} trained parameters"))
    path = cache_dir() / FILE
    kept = _read(path).get(key)
    if kept is not None and kept in (1, most):
        return kept
    if steps < FEWEST_STEPS:
        return most
    found = fastest(step, (most, 1))
    # Where nothing can be kept, the next fit measures again.
    with suppress(InputError), locked(path.with_suffix(".lock")):
        found = _read(path).setdefault(key, found)
        write_atomic(path, json.dumps({**_read(path), key: found}, indent=1))
    return found


def fastest(step: Callable[[], object], counts: tuple[int, ...]) -> int:
    """Find the number of threads with which `step` takes the least time at best.

    At best: what else runs on the machine makes single steps slower, and none faster.
    """
    best = dict.fromkeys(counts, float("inf"))
    started = time.perf_counter()
    for lap in range(1 + ROUNDS):
        for count in counts:
            torch.set_num_threads(count)
            since = time.perf_counter()
            step()
            if lap:  # the first one has to fetch memory
                best[count] = min(best[count], time.perf_counter() - since)
        if lap and time.perf_counter() - started > SECONDS:
            break
    return min(counts, key=best.__getitem__)


def _read(path: Path) -> dict[str, int]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or damaged
        return {}
    return kept if isinstance(kept, dict) else {}


SAVE_EVERY_S = 30.0
REMEDY = "Lower the learning rate"

Plan = Callable[[int], list[list[int]]]
"""An epoch, counted from 0 -> its batches: positions of images. All epochs have as many."""
Gradients = Callable[[list[int], int], Terms]
"""A batch and the number of its step since the start -> the loss and its terms, as gradients."""
Loss = Callable[[list[int]], Tensor]
"""Positions of the images of a batch -> the loss to be minimised."""
Schedule = Callable[[float, int], float]
"""The learning rate at the start, the epoch counted from 0 -> the learning rate of that epoch."""


def choose_device(name: str = "auto") -> torch.device:
    """`auto` is the first CUDA device where there is one, else the CPU."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        name = "cuda:0"
    elif name == "auto":
        name = "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(f"Device '{name}' does not exist. Use auto, cpu or cuda.") from error
    usable = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    if not usable.get(device.type, False):
        raise SettingsError(f"Device '{name}' cannot be used here. Use --device cpu.")
    return device


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 on CUDA devices that have it; float32 elsewhere (bfloat16 is slow on most CPUs)."""
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", torch.bfloat16)
    return nullcontext()


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
                if due and checkpoint:
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
        checkpoint=job.checkpoint(),
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
