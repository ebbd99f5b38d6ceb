"""Saved training state: one safetensors file, replaced atomically, tied to what is being fitted."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from recap._files import write_atomic
from recap.errors import OtherFitError, TrainingError

FINGERPRINT = "fingerprint"
"""The file that says which fit a folder is of."""
STATE = ("step", "exp_avg", "exp_avg_sq")

Terms = dict[str, float]
"""A loss and what it is the sum of, by name."""


@dataclass(frozen=True)
class Place:
    """A place in a training."""

    epoch: int = 0
    """Finished epochs."""
    step: int = 0
    """Finished steps of the epoch under way."""
    sums: Terms = field(default_factory=dict)
    """Its terms so far, each weighed by its share of the epoch's images."""
    last: Terms = field(default_factory=dict)
    """Mean terms of the last finished epoch."""

    def after(self, terms: Terms, share: float, steps: int) -> "Place":
        """Return the place one step of `steps` later; the step saw that share of the images."""
        sums = {name: self.sums.get(name, 0.0) + share * value for name, value in terms.items()}
        if self.step + 1 == steps:
            return Place(self.epoch + 1, last=sums)
        return Place(self.epoch, self.step + 1, sums, self.last)


class Checkpoint:
    """Training state in a folder. A file of another fit is refused, not overwritten."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder
        self._file = folder / "checkpoint.safetensors"
        owner = folder / FINGERPRINT
        if owner.exists() and owner.read_text(encoding="utf-8") != fingerprint:
            raise OtherFitError(
                f"{folder} holds the unfinished fit of other images or settings. "
                "Finish that one with its own settings, or discard it: with --restart, or delete "
                "this folder."
            )
        if not owner.exists():
            # Whole or not at all: other processes of the same fit read it meanwhile.
            write_atomic(owner, fingerprint)

    def save(self, model: nn.Module, optimiser: Optimizer, place: Place) -> None:
        """Keep the state after a step."""
        tensors = {f"model/{name}": p.detach() for name, p in _trained(model)}
        for name, parameter in _trained(model):
            for key in STATE:
                state = optimiser.state[parameter].get(key)
                if state is not None:  # a branch without masks is never stepped
                    tensors[f"adam/{name}/{key}"] = state
        contiguous = {name: t.contiguous().cpu() for name, t in tensors.items()}
        # Not by `save_file`: its errors do not say that the disk is full.
        write_atomic(self._file, save(contiguous, metadata={"place": json.dumps(asdict(place))}))

    def restore(self, model: nn.Module, optimiser: Optimizer) -> Place:
        """Load the last state, if there is one; returns where it was saved."""
        if not self._file.exists():
            return Place()
        try:
            with safe_open(self._file, "pt") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                metadata = file.metadata() or {}
            place = Place(**json.loads(metadata["place"]))
            _restore(model, optimiser, tensors)
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise TrainingError(
                f"{self._file} is damaged ({error}). Discard the unfinished fit: with --restart, "
                "or delete this folder."
            ) from error
        return place


def open_checkpoint(work_dir: Path | None, fingerprint: str) -> Checkpoint | None:
    """Open the training state in the folder for unfinished work, if there is such a folder."""
    return None if work_dir is None else Checkpoint(work_dir, fingerprint)


def _trained(model: nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


@torch.no_grad()
def _restore(model: nn.Module, optimiser: Optimizer, tensors: dict[str, Tensor]) -> None:
    for name, parameter in _trained(model):
        parameter.copy_(tensors[f"model/{name}"])
        state = {key: tensors.get(f"adam/{name}/{key}") for key in STATE}
        if state["step"] is not None:
            # Adam counts steps on the CPU, and beside the parameter if its steps are one kernel.
            fused = any(
                group.get("fused") and any(parameter is own for own in group["params"])
                for group in optimiser.param_groups
            )
            optimiser.state[parameter] = {
                key: value.to("cpu" if key == "step" and not fused else parameter.device)
                for key, value in state.items()
                if value is not None
            }
