"""The file names in published support lists, for pools that must contain them."""

from collections.abc import Iterable
from pathlib import Path

from recap.data.supports import LINE, read_list
from recap.errors import InputError


def listed_names(places: Iterable[Path]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Normal and abnormal names of list files (`n-0: …`, `a-0: …`), or of all .txt in folders."""
    names: dict[str, set[str]] = {"n": set(), "a": set()}
    for place in places:
        files = sorted(place.glob("*.txt")) if place.is_dir() else [place]
        if not files:
            raise InputError(f"{place}: no support lists (*.txt) in this folder.")
        for file in files:
            for letter, found in _read(file):
                names[letter].update(found)
    return tuple(sorted(names["n"])), tuple(sorted(names["a"]))


def _read(file: Path) -> list[tuple[str, list[str]]]:
    lines = read_list(file).splitlines()
    matches = [LINE.fullmatch(line.strip()) for line in lines if line.strip()]
    if not matches or None in matches:
        raise InputError(
            f"{file}: not a support list. Expected lines 'n-0: file …' and 'a-0: file …'."
        )
    return [(match[1], match[2].split()) for match in matches if match is not None]
