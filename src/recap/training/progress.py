"""How fitting tells what it is doing: a call per step, drawn by whoever listens."""

from typing import Protocol


class Progress(Protocol):
    """`progress(stage, done, total, detail)`; stages are `encode`, `train`, `train_maps`
    and `remember`."""

    def __call__(self, stage: str, done: int, total: int, detail: str) -> None:
        """Take note of a step."""


def silent(stage: str, done: int, total: int, detail: str) -> None:
    """Say nothing."""
