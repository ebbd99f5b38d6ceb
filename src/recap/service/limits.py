"""How much one client, and all together, may ask for at a time."""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

MOST_CLIENTS = 4096


class Rate:
    """So many calls a minute for each client; half a minute's worth may come at once."""

    def __init__(self, per_minute: int) -> None:
        self._per_second = per_minute / 60
        self._most = max(1.0, per_minute / 2)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._guard = threading.Lock()

    def wait_seconds(self, client: str, now: float | None = None) -> float:
        """Count one call; 0 if it may go on, else when to come back."""
        now = time.monotonic() if now is None else now
        with self._guard:
            left, then = self._left.pop(client, (self._most, now))
            left = min(self._most, left + (now - then) * self._per_second)
            self._left[client] = (max(left - 1, 0) if left >= 1 else left, now)
            # The clients that were away the longest are forgotten: they have all calls left.
            while len(self._left) > MOST_CLIENTS:
                self._left.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / self._per_second


class Places:
    """A number of places; whoever finds none comes back later rather than waiting in line."""

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Hold a place; false if there is none."""
        held = self._free.acquire(blocking=False)
        try:
            yield held
        finally:
            if held:
                self._free.release()
