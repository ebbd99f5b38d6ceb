"""The file names in published support lists, for pools that must contain them."""

import re
from collections.abc import Iterable
from pathlib import Path

from recap.errors import InputError

_LINE = re.compile(r"([na])-0:(.*)")


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
    try:
        # Some editors add a byte order mark.
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: the support list cannot be read ({error}).") from error
    matches = [_LINE.fullmatch(line.strip()) for line in lines if line.strip()]
    if not matches or None in matches:
        raise InputError(
            f"{file}: not a support list. Expected lines 'n-0: file …' and 'a-0: file …'."
        )
    return [(match[1], match[2].split()) for match in matches if match is not None]
