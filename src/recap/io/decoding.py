"""The surroundings of every decoder: room in memory, silence, and errors of one line.

A small file may hold a picture of gigabytes. What decoding will take is told by the header, so it
is asked for here before a decoder runs: too much for the whole budget is refused with a remedy, and
what only lacks room at the moment waits until other threads are done.

    with BUDGET.room(pixels * bytes_per_pixel, str(path)):
        ...  # decode
"""

import math
import os
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from recap.errors import InputError, RecapError, SettingsError

VARIABLE = "RECAP_DECODE_GB"
DEFAULT_GB = 4.0
SMALLER = "Shrink it, or cut it into parts."
_GB = 1e9
# Where a container's limit of memory stands, in the second and the first version of cgroups.
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_LONGEST_REASON = 200


class OverBudgetError(InputError, code="too_large"):
    """Decoding a file would take more memory than all of it may."""


class DecodingBudget:
    """The bytes that all decoders of a process may take together."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit = limit_bytes
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._taken = 0
        self._taken_by: dict[int, int] = {}

    @property
    def limit_bytes(self) -> int:
        """The whole budget: as given here, else as the environment says."""
        return limit_from_environment() if self._limit is None else self._limit

    def restrict(self, limit_bytes: int) -> None:
        """Set the budget to this, unless it is smaller already."""
        self._limit = min(self.limit_bytes, limit_bytes)

    def check(self, needed_bytes: float, source: str, instead: str = SMALLER) -> None:
        """Refuse what would not fit even if nothing else were decoded.

        `instead` is what to do where the machine has no more memory to give.
        """
        if needed_bytes > (limit := self.limit_bytes):
            # A process that was given a share of the budget gets the same share of a larger one.
            enough = needed_bytes * limit_from_environment() / limit
            raise OverBudgetError(
                f"{source}: it would take {needed_bytes / _GB:.1f} GB of memory, and "
                f"{limit / _GB:.2g} GB is the most that is allowed.",
                path=source,
                remedy=f"{instead} If this machine has the memory, set "
                f"{VARIABLE}={math.ceil(enough / _GB)}.",
            )

    @contextmanager
    def room(self, needed_bytes: float, source: str, instead: str = SMALLER) -> Iterator[None]:
        """Hold room for as long as the block runs; wait for it in the order of asking.

        A thread that holds room already is given more at once: others may be waiting for what it
        has, and would wait for ever.
        """
        self.check(needed_bytes, source, instead)
        needed, thread, ticket = int(needed_bytes), threading.get_ident(), object()
        with self._changed:
            if thread not in self._taken_by:
                self._waiting.append(ticket)
                try:
                    self._changed.wait_for(
                        lambda: (
                            self._waiting[0] is ticket
                            and (not self._taken or self._taken + needed <= self.limit_bytes)
                        )
                    )
                finally:
                    self._waiting.remove(ticket)
                    self._changed.notify_all()
            before = self._taken_by.get(thread)
            self._taken_by[thread] = (before or 0) + needed
            self._taken += needed
        try:
            yield
        finally:
            with self._changed:
                self._taken -= needed
                if before is None:
                    del self._taken_by[thread]
                else:
                    self._taken_by[thread] = before
                self._changed.notify_all()


def limit_from_environment() -> int:
    """The budget in bytes that `RECAP_DECODE_GB` names, or the default.

    That is 4 GB, or half of the machine's or container's memory where this is less.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return int(min(DEFAULT_GB * _GB, machine_bytes() / 2))
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not 0 < gigabytes < math.inf:
        raise SettingsError(
            f"{VARIABLE} = '{text}' is no amount of memory. Give gigabytes, such as 8."
        )
    return int(gigabytes * _GB)


@cache
def machine_bytes() -> int:
    """The memory of this machine, or of the container that the process runs in."""
    known = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # "max" where there is none
            known.append(int(file.read_text()))
    return min(known)


BUDGET = DecodingBudget()


"""That of this process."""


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


def not_there(path: Path, thing: str = "file") -> str:
    """Explain why a thing that was listed or named is not found."""
    if path.is_symlink():
        return (
            f"this is a link that leads nowhere, to {path.readlink()}. Bring that {thing} back, or "
            "remove the link."
        )
    return f"there is no such {thing}."


@contextmanager
def one_line_errors(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever parsers and decoders say about a file of this kind into one `InputError`."""
    try:
        yield
    except RecapError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path}: {not_there(path)}", path=path) from error
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read this file.", path=path) from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: this is a folder, not a {kind}.", path=path) from error
    except MemoryError as error:
        raise InputError(
            f"{path}: this {kind} takes more memory than there is.",
            code="no_memory",
            path=path,
            remedy="Close other programs or crop it.",
        ) from error
    # A damaged file is answered with almost any exception.
    except Exception as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
        raise InputError(
            f"{path}: the {kind} cannot be read ({reason}).",
            path=path,
            remedy="Copy or export it again.",
        ) from error
