"""Python's garbage collector looks through everything that libraries make on import.

It does so after every few hundred objects, of which torch and transformers make a million, and once
more when a command ends; nothing of it is ever garbage. That is a fifth of the time of a command on
one image.
"""

import atexit
import gc

_OBJECTS = 10_000
"""Collect after so many new objects. Few enough that images held by a cycle do not pile up."""


def collect_seldom() -> None:
    """For this whole process, so that only commands call it and the processes that they start."""
    gc.set_threshold(_OBJECTS)
    atexit.unregister(gc.freeze)  # once is enough
    atexit.register(gc.freeze)  # what is there when a command ends goes with its process
