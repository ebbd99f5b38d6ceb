"""Decoders warn about files that users cannot change: silence, in every thread."""

import threading
import warnings


class _NoWarnings:
    """No warnings while any thread is inside, and the old filters back after the last has left.

    `warnings.catch_warnings` swaps a list that all threads share: left in another order than it
    was entered, it would silence the process for good.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.simplefilter("ignore")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._filters.__exit__(None, None, None)


no_warnings = _NoWarnings()
"""`with no_warnings:` around decoding."""
