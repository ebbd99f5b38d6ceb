"""Memory that was freed is kept for the next tensor instead of going back to the system.

Every block of an encoder frees and asks for the same few megabytes. By its defaults the C library
may hand them back in between, and the system gives them out again page by page, each wiped first.
On virtual machines a page can take microseconds, and an image takes a thousand of them.
"""

import contextlib
import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's names for them in malloc.h
_KEPT_BYTES = 256 * 2**20
_LARGE_BYTES = 32 * 2**20
"""Larger pieces, such as whole volumes, still go back at once; glibc takes no higher bound."""


def keep_freed_memory() -> None:
    """For this whole process, so that only commands call it and the processes that they start; does
    nothing without glibc."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
