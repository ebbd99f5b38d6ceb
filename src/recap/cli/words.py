"""Text for people: counted things, and names that cannot command a terminal."""

from recap.words import counted

__all__ = ["counted", "printable"]


def printable(text: str, keep: str = "") -> str:
    """Text for a terminal or a log: what a file name could command there is shown instead.

    An escape sequence may clear the screen, a line break forge a line of a log.
    """
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
