"""Says whether two trees of recap give the same bits on this machine, and where they do not.

    python tests/pins/compare.py TREE_A TREE_B [TOPIC …]

Every kind of detector is fitted and scored by the code of either tree, in processes of their own.
Topics are `cards`, `scores` and `metrics`; all of them by default. Where numbers differ, the
largest difference of each kind of detector is told, and the exit code is 1.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MADE = "made"
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.]|\.\d)")


def inputs_in(work: Path) -> None:
    """Write what is fitted and scored: the same for every tree."""
    _python(HERE.parents[1] / "src", "pin_inputs.py", str(work))


def notes_of(tree: Path, work: Path) -> dict[str, Any]:
    """Make everything anew with the code of a tree."""
    shutil.rmtree(work / MADE, ignore_errors=True)
    notes: dict[str, Any] = json.loads(_python(tree / "src", "pin_run.py", str(work), MADE))
    return notes


def _python(source: Path, script: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(HERE.parent)])}
    environment.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, str(HERE / script), *arguments]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode:
        sys.exit(f"{script} failed with the code in {source}")
    return run.stdout


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every text and number of a tree, with its place."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*path, str(key)))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from leaves(value, (*path, str(index)))
    else:
        yield path, tree


def apart(one: Any, other: Any) -> float:
    """How far two values are apart: texts by their numbers, infinitely if worded otherwise."""
    first, second = str(one), str(other)
    if first == second:  # as texts, for nan is not nan
        return 0.0
    if _NUMBER.sub("#", first) != _NUMBER.sub("#", second):
        return math.inf
    pairs = zip(_NUMBER.findall(first), _NUMBER.findall(second), strict=True)
    return max(abs(float(a) - float(b)) / max(1.0, abs(float(a))) for a, b in pairs)


def differences(
    one: Any, other: Any, tolerance: float = 0.0
) -> Iterator[tuple[tuple[str, ...], Any, Any, float]]:
    """Places where two trees of notes differ by more than a tolerance: place, values, distance.

    The tolerance is absolute for numbers below one, relative above.
    """
    first, second = dict(leaves(one)), dict(leaves(other))
    for place in sorted(first.keys() | second.keys()):
        a, b = first.get(place), second.get(place)
        distance = apart(a, b) if place in first and place in second else math.inf
        if distance > tolerance:
            yield place, a, b, distance


def main(first: Path, second: Path, *topics: str) -> int:
    """Compare two trees; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        inputs_in(Path(folder))
        one, other = (notes_of(tree.resolve(), Path(folder)) for tree in (first, second))
    wanted = topics or tuple(one)
    found = list(differences(*({t: notes[t] for t in wanted} for notes in (one, other))))
    for place, a, b, distance in found[:200]:
        print("/".join(place), a, b, f"({distance:.2g})", sep="  ")
    print(f"{len(found)} of {len(dict(leaves({t: one[t] for t in wanted})))} values differ")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
