"""When to try again what failed, each thing on its own: soon at first, then more rarely."""

import time
from collections.abc import Hashable

_RAREST = 60


class Retries:
    """What waits, and until when; a restart tries all of it again. For any thread."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._waits: dict[Hashable, tuple[float, float]] = {}

    def is_due(self, key: Hashable) -> bool:
        """Whether nothing keeps it from being tried."""
        wait = self._waits.get(key)
        return wait is None or wait[0] <= time.monotonic()

    def waiting(self) -> list[Hashable]:
        """All whose time has not come."""
        # A copy: another thread may postpone or forget one meanwhile.
        return [key for key in self._waits.copy() if not self.is_due(key)]

    def postpone(self, key: Hashable) -> None:
        """Let it wait, each time twice as long: many that fail must not take all the time."""
        _, wait_s = self._waits.get(key, (0.0, self._first_s))
        self._waits[key] = time.monotonic() + wait_s, min(2 * wait_s, _RAREST * self._first_s)

    def forget(self, key: Hashable) -> None:
        """It has been dealt with."""
        self._waits.pop(key, None)
