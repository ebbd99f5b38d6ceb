"""Words that agree with their numbers, and the first of many names."""

from collections.abc import Sequence

SHOWN = 5


def counted(number: int, thing: str) -> str:
    """`1 image`, `2 images`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def some(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
