"""How long work tells what it is doing: a call per step, drawn by whoever listens."""

from collections.abc import Callable

Progress = Callable[[str, int, int, str], None]
"""`progress(stage, done, total, detail)`: the detail is whatever helps, such as a file's name."""


def silent(stage: str, done: int, total: int, detail: str) -> None:
    """Say nothing."""
