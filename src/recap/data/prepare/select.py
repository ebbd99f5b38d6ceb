"""Choices that any machine repeats: an order by SHA-256 instead of a random generator."""

import hashlib
from collections.abc import Collection, Iterable, Mapping


def rank(name: str, purpose: str = "") -> bytes:
    """A name's place in an order that depends on nothing else; purposes are independent."""
    # File names need not be valid UTF-8.
    return hashlib.sha256(f"{purpose}:{name}".encode(errors="surrogateescape")).digest()


def ranked(names: Iterable[str], purpose: str = "") -> list[str]:
    """The names in the order of their rank."""
    return sorted(names, key=lambda name: rank(name, purpose))


def draw(
    names: Iterable[str], count: int, purpose: str = "", first: Collection[str] = ()
) -> list[str]:
    """The first `count` names by rank; those in `first` come before and are never left out."""
    first, order = {*first}, ranked(names, purpose)
    wanted = [name for name in order if name in first]
    others = [name for name in order if name not in first]
    return wanted + others[: max(0, count - len(wanted))]


def share_out(total: int, published: Mapping[str, int]) -> dict[str, int]:
    """The published numbers, or their like where there is less to share out.

    Everyone gets one first, in the order given, then parts in proportion.
    """
    wanted = sum(published.values())
    if total >= wanted:
        return dict(published)
    given = {name: int(place < total) for place, name in enumerate(published)}
    left = total - sum(given.values())
    for name, number in published.items():
        given[name] += left * number // wanted
    given[max(published, key=lambda name: published[name])] += total - sum(given.values())
    return given
