"""Text for a terminal, whose names cannot command it."""

from collections.abc import Sequence

from recap.errors import some


def unmatched_exclusions(listed_in: str, entries: Sequence[str], domain: str) -> str:
    """What is said of entries of an exclusion list that leave nothing out."""
    return (
        f"{listed_in}: entries that match no image here: {some(entries)}. An entry starts with the "
        f"data set's folder, as {domain}_AD/test/… does."
    )


def printable(text: str, keep: str = "") -> str:
    """Text for a terminal or a log: what a file name could command there is shown instead.

    An escape sequence may clear the screen, a line break forge a line of a log.
    """
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
