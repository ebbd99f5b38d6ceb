"""The reference runtime: the model itself, in torch's eager mode."""

from typing import Any

import torch

from recap.methods.base import Scorer
from recap.runtime.cores import Cores
from recap.scoring.arrays import Arrays, named_arrays, tensors_by_name
from recap.types import FloatArray


class TorchRuntime:
    """Runs a model where it lives. Threads are those of the whole process.

    For several images side by side the caller has to give torch one thread.
    """

    name = "torch"

    def __init__(self, model: Scorer, cores: Cores | None = None) -> None:
        self._model = model.eval()
        cores = cores or Cores()
        self.lanes = cores.lanes
        if cores.threads is not None and cores.lanes == 1:
            torch.set_num_threads(cores.threads)

    def run(self, pixels: FloatArray) -> Arrays:
        """Score 0..1 pixels (B, 3, S, S)."""
        with torch.inference_mode():
            output = self._model(torch.from_numpy(pixels).to(self._model.device))
        named = tensors_by_name(output)
        return named_arrays({name: value.cpu().numpy() for name, value in named.items()})

    def describe(self) -> dict[str, Any]:
        """What computes."""
        return {
            "runtime": self.name,
            "version": torch.__version__,
            "device": str(self._model.device),
            "threads": self.lanes if self.lanes > 1 else torch.get_num_threads(),
            "images_at_a_time": self.lanes,
        }
