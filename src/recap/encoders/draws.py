"""Seeded random numbers that leave torch's own generator as it was and start no GPU."""

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


def seed_draws(seed: int, device: torch.device) -> None:
    """Start the draws on the processor, and on the device if it is another, from a seed on.

    torch.manual_seed does both, but where there is no GPU it notes for every kind that there might
    be what to do once one is there, with the whole stack: at each step of a training that adds up.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
