"""Time by stage: where a run spends it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stages:
    """Seconds by the name of a stage.

    Stages run at the same time in several threads: their seconds may add up to more than passed.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of a step to its stage, whether it succeeds or not."""
        started = time.perf_counter()
        try:
            yield
        finally:
            passed = time.perf_counter() - started
            with self._lock:
                self.seconds[name] = self.seconds.get(name, 0.0) + passed
