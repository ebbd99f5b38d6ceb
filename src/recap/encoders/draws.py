"""Random numbers of one's own: those of others stay as they are, and no GPU is started for them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def own_draws(seed: int | None = None) -> Iterator[None]:
    """Draw on the processor, from `seed` on if one is given; then the generator is as before."""
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield
