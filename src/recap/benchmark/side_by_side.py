"""Results that stand side by side in a table, and are ranked, though they are of other things."""

from collections.abc import Iterable


def differing(results: Iterable[tuple[str, str, str]]) -> str:
    """From each result's place, method and what it is of: the places where that is not one thing.

    >>> differing([("Brain", "a", "4 images"), ("Brain", "b", "3 images"), ("Chest", "a", "2")])
    'Brain (a on 4 images; b on 3 images)'
    """
    places: dict[str, dict[str, list[str]]] = {}
    for place, method, what in results:
        places.setdefault(place, {}).setdefault(what, []).append(method)
    return ", ".join(
        f"{place} ({'; '.join(_said(*kind) for kind in kinds.items())})"
        for place, kinds in places.items()
        if len(kinds) > 1
    )


def _said(what: str, methods: list[str]) -> str:
    return f"{', '.join(dict.fromkeys(methods))} on {what}"
