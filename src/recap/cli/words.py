"""Text for people: counted things, and names that cannot command a terminal."""


def counted(number: int, thing: str) -> str:
    """`1 image`, `2 images`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def printable(text: str, keep: str = "") -> str:
    """Text for a terminal or a log: what a file name could command there is shown instead.

    An escape sequence may clear the screen, a line break forge a line of a log.
    """
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
