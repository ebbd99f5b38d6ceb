"""Files that belong together by the number in their names, such as an image and its labels."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from recap.data.prepare.plan import Note


@dataclass(frozen=True)
class Pair:
    """An image volume and its labels."""

    number: str
    image: Path
    labels: Path


@dataclass(frozen=True)
class Paired:
    """The complete pairs in order, and what is wrong with the others."""

    pairs: tuple[Pair, ...]
    errors: tuple[Note, ...]


def pair_up(paths: Iterable[Path], image: re.Pattern[str], labels: re.Pattern[str]) -> Paired:
    """Match files whose names fit; each pattern captures the number."""
    found: dict[str, dict[str, list[Path]]] = {}
    for path in sorted(paths):
        for kind, pattern in (("image", image), ("labels", labels)):
            match = pattern.fullmatch(path.name)
            if match and not path.name.startswith("."):
                found.setdefault(match[1], {"image": [], "labels": []})[kind].append(path)
    pairs, errors = [], []
    for number, kinds in sorted(found.items(), key=lambda entry: int(entry[0])):
        if len(kinds["image"]) == len(kinds["labels"]) == 1:
            pairs.append(Pair(number, kinds["image"][0], kinds["labels"][0]))
        else:
            errors.append(Note(_name(kinds), _problem(kinds)))
    return Paired(tuple(pairs), tuple(errors))


def _name(kinds: dict[str, list[Path]]) -> str:
    return next(path.name for paths in kinds.values() for path in paths)


def _problem(kinds: dict[str, list[Path]]) -> str:
    for kind, paths in kinds.items():
        if not paths:
            return f"its {kind} file is missing. Download it again."
    return f"there are {max(map(len, kinds.values()))} files of this name. Keep one."
