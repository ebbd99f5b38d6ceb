"""Words that agree with their numbers."""


def counted(number: int, thing: str) -> str:
    """`1 image`, `2 images`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
