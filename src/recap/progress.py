"""How long work tells what it is doing: a call per step, drawn by whoever listens.

There is this one type for everything that takes long, from a download to a grid of experiments.
"""

from collections.abc import Callable

Progress = Callable[[str, int, int, str], None]
"""`progress(stage, done, total, detail)`: the detail is whatever helps, such as a file's name.

Where nobody knows how much there is, the total is 0; a step of which nothing can be counted (0 of
0) is a line of its own: `progress("export", 0, 0, "Tracing the detector")`.
"""


def silent(stage: str, done: int, total: int, detail: str) -> None:
    """Say nothing."""
