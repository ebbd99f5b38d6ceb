"""When to try again what failed, each thing on its own: soon at first, then more rarely."""

import time
from pathlib import Path

_RAREST = 60


class Retries:
    """Files and folders that wait, and until when; a restart tries all of them again."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._waits: dict[Path, tuple[float, float]] = {}

    def is_due(self, path: Path) -> bool:
        """Whether nothing keeps it from being tried."""
        return path not in self._waits or self._waits[path][0] <= time.monotonic()

    def postpone(self, path: Path) -> None:
        """Let it wait, each time twice as long: many that fail must not take all the time."""
        _, wait_s = self._waits.get(path, (0.0, self._first_s))
        self._waits[path] = time.monotonic() + wait_s, min(2 * wait_s, _RAREST * self._first_s)

    def forget(self, path: Path) -> None:
        """It has been dealt with."""
        self._waits.pop(path, None)
