"""A case that takes more memory than there is fails by itself, and the others go on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from recap.errors import InputError

_REFUSALS = ("can't allocate memory", "not enough memory")
"""What torch says of the machine's own memory; it has no exception of its own for that."""


@contextmanager
def refusing_too_large() -> Iterator[None]:
    """Tell a want of memory as an error of the case."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _too_large() from error
    except RuntimeError as error:
        if not any(refusal in str(error) for refusal in _REFUSALS):
            raise
        raise _too_large() from error


def _too_large() -> InputError:
    return InputError(
        "This case takes more memory than there is. Close other programs, crop it, or give "
        "--device cpu if it is a GPU's memory. Then run again: it is tried anew.",
        code="no_memory",
    )
