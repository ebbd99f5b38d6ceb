"""Ending a command when it is told to: as by Ctrl-C, with nothing left behind.

A process that a signal just kills leaves its scratch folders, and these may hold images of patients
that were unpacked.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# From schedulers and `docker stop`, and from a terminal that is closed. Windows has no SIGHUP.
SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_KILLED_BY = 128
REASONS = {_KILLED_BY + signal.SIGINT: "interrupted"} | {
    _KILLED_BY + number: f"ended by {number.name}" for number in SIGNALS
}
"""Exit codes, as shells count signals."""


@contextmanager
def orderly_end() -> Iterator[None]:
    """Make an interrupt of signals that would kill; one that is ignored (nohup) stays so."""
    received = []
    caught = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in caught:  # a second one would interrupt the tidying up that the first began
            signal.signal(each, signal.SIG_IGN)
        received.append(number)
        raise KeyboardInterrupt

    for number in caught:
        signal.signal(number, interrupt)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if received:
            raise SystemExit(_KILLED_BY + received[0]) from None
        raise
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)
