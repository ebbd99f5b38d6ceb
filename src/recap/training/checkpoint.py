"""Saved training state: one safetensors file, replaced atomically, tied to what is being fitted."""

import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from recap.errors import OtherFitError, TrainingError

STATE = ("step", "exp_avg", "exp_avg_sq")


class Checkpoint:
    """Training state in a folder. A file of another fit is refused, not overwritten."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder
        self._file = folder / "checkpoint.safetensors"
        owner = folder / "fingerprint"
        if owner.exists() and owner.read_text(encoding="utf-8") != fingerprint:
            raise OtherFitError(
                f"{folder} holds the unfinished fit of other images or settings. "
                "Finish that one with its own settings, or discard it with --restart."
            )
        folder.mkdir(parents=True, exist_ok=True)
        if not owner.exists():
            # Whole or not at all: other processes of the same fit read it meanwhile.
            partial = folder / f"fingerprint.{os.getpid()}"
            partial.write_text(fingerprint, encoding="utf-8")
            partial.replace(owner)

    def save(
        self, model: nn.Module, optimiser: Optimizer, epoch: int, losses: dict[str, float]
    ) -> None:
        """Keep the state after `epoch` finished epochs, with the last one's mean losses."""
        tensors = {f"model/{name}": p.detach() for name, p in _trained(model)}
        for name, parameter in _trained(model):
            for key in STATE:
                state = optimiser.state[parameter].get(key)
                if state is not None:  # a branch without masks is never stepped
                    tensors[f"adam/{name}/{key}"] = state
        partial = self._file.with_suffix(".tmp")
        contiguous = {name: t.contiguous().cpu() for name, t in tensors.items()}
        save_file(contiguous, partial, metadata={"epoch": str(epoch), "losses": json.dumps(losses)})
        partial.replace(self._file)

    def restore(self, model: nn.Module, optimiser: Optimizer) -> tuple[int, dict[str, float]]:
        """Load the last state, if any: the number of finished epochs and the last one's losses."""
        if not self._file.exists():
            return 0, {}
        try:
            with safe_open(self._file, "pt") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                metadata = file.metadata() or {}
            epoch, losses = int(metadata["epoch"]), json.loads(metadata["losses"])
            _restore(model, optimiser, tensors)
        except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise TrainingError(
                f"{self._file} is damaged ({error}). Discard the unfinished fit with --restart."
            ) from error
        return epoch, losses


def open_checkpoint(work_dir: Path | None, fingerprint: str) -> Checkpoint | None:
    """The training state in the folder for unfinished work, if there is such a folder."""
    return None if work_dir is None else Checkpoint(work_dir, fingerprint)


def _trained(model: nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


@torch.no_grad()
def _restore(model: nn.Module, optimiser: Optimizer, tensors: dict[str, Tensor]) -> None:
    for name, parameter in _trained(model):
        parameter.copy_(tensors[f"model/{name}"])
        state = {key: tensors.get(f"adam/{name}/{key}") for key in STATE}
        if state["step"] is not None:
            optimiser.state[parameter] = {
                # Adam keeps its step counter on the CPU.
                key: value if key == "step" else value.to(parameter.device)
                for key, value in state.items()
                if value is not None
            }
