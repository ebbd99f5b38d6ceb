"""Where training runs: one device, or several processes under `accelerate launch`."""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recap.errors import SettingsError, require
from recap.training.objective import LossTerms, Objective

if TYPE_CHECKING:
    from recap.training.loop import TrainingSet


def choose_device(name: str = "auto") -> torch.device:
    """`auto` is this process's CUDA device where there is one, else the CPU.

    So is `cuda`, where there is one: all processes of a fit must not meet on the first.
    """
    if name in ("auto", "cuda") and torch.cuda.is_available():
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
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


def process_count() -> int:
    """How many processes fit this detector together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this process writes files."""
    return int(os.environ.get("RANK", "0")) == 0


class Workers:
    """Computes gradients of a batch, shared out over the processes.

    Each process takes its share of the batch and weighs it by its size, so the averaged gradient
    is that of the whole batch.
    """

    def __init__(self, objective: Objective) -> None:
        self.device = objective.model.device
        self._forward: Any = objective
        self._accelerator: Any = None
        if process_count() > 1:
            accelerate = require("accelerate", "accelerate")
            # Without masks the segmentation branch takes no part in the loss.
            unused = accelerate.DistributedDataParallelKwargs(find_unused_parameters=True)
            self._accelerator = accelerate.Accelerator(
                cpu=self.device.type == "cpu", kwargs_handlers=[unused]
            )
            self._forward = self._accelerator.prepare(objective)

    def backward(self, data: "TrainingSet", indices: list[int]) -> dict[str, float]:
        """Accumulate the gradients of one batch and return its loss terms."""
        rank, count = (
            (self._accelerator.process_index, self._accelerator.num_processes)
            if self._accelerator
            else (0, 1)
        )
        share = indices[rank::count]
        # An idle process still joins the averaging, with weight zero.
        batch = data.batch(share or indices[:1], self.device)
        with autocast(self.device):
            terms: LossTerms = self._forward(batch)
        weight = len(share) * count / len(indices)
        (terms.total * weight).backward()
        return self._mean(terms, weight)

    def _mean(self, terms: LossTerms, weight: float) -> dict[str, float]:
        values: Tensor = terms.stacked().detach() * weight
        if self._accelerator:
            values = self._accelerator.reduce(values, reduction="mean")
        return dict(zip(LossTerms.NAMES, values.tolist(), strict=True))


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 on CUDA devices that have it; float32 elsewhere (bfloat16 is slow on most CPUs)."""
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", torch.bfloat16)
    return nullcontext()
