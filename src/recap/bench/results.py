"""Experiments: named views on the cells of a folder. A cell that several of them show runs once.

    OUT/experiments/conditioning.json:
    {"experiment": "conditioning", "variants": {"gated": ["recap/Brain/4-shot/seed-0-…", …], …}}

A study also keeps its `base`, which is all that its variants have in common.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recap._files import locked, write_atomic
from recap.bench.cells import Cell
from recap.bench.kept import (
    CELLS,
    PACKED,
    is_kept,
    kept_names,
    read_result,
    read_results,
    refusing_damage,
)
from recap.errors import InputError
from recap.methods.registry import settings_from_dict

GRID, POOL = "grid", "pool"
"""The grids of `recap bench run`, on the test splits and on the pools."""
FOLDER = "experiments"
_LOCK = ".experiments.lock"


def experiment_file(out: Path, name: str) -> Path:
    """Name the file of an experiment."""
    return out / FOLDER / f"{name}.json"


def register(
    out: Path,
    name: str,
    variants: Mapping[str, Sequence[Cell]],
    base: Mapping[str, Any] | None = None,
) -> None:
    """Add cells to an experiment, each under the label of its variant.

    Cells of another `base` are refused: their numbers could not be compared. Of runs that begin
    at the same time in one folder, one waits for the other.
    """
    with locked(out / _LOCK):
        _adopt(out)
        content = definition(out, name) or {"experiment": name, "variants": {}}
        if base is not None:
            _refuse_other_base(experiment_file(out, name), content.setdefault("base", base), base)
        for label, cells in variants.items():
            known = content["variants"].get(label, [])
            content["variants"][label] = list(dict.fromkeys([*known, *(c.name for c in cells)]))
        _write(out, name, content)


def definition(out: Path, name: str) -> dict[str, Any] | None:
    """Read what an experiment consists of; none if it was never begun."""
    file = experiment_file(out, name)
    if not file.exists():
        return None
    with refusing_damage(file):
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def read_experiment(out: Path, name: str) -> list[tuple[str, dict[str, Any]]]:
    """The finished cells of an experiment with their labels.

    Folders from before there were experiments are one grid.
    """
    content = definition(out, name)
    if content is None:
        if name != GRID or (out / FOLDER).is_dir():
            return []
        return [(result["cell"]["method"], result) for result in read_results(out)]
    return [
        (label, read_result(out, name))
        for label, names in content["variants"].items()
        for name in names
        if is_kept(out, name)
    ]


def with_presets(cells: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """The labels of a grid's cells, told apart by preset.

    Where a method stands under several presets, all but the default one are in its name.
    """
    own = [(label, cell["settings"]["preset"]) for label, cell in cells]
    presets: dict[str, set[str]] = {}
    for label, preset in own:
        presets.setdefault(label, set()).add(preset)
    return [
        label if len(presets[label]) == 1 or preset == "recap" else f"{label} ({preset})"
        for label, preset in own
    ]


def measured_on(cell: Mapping[str, Any]) -> str:
    """test or pool, of a cell as it is kept; those on the test split do not say it."""
    return str(cell.get("on", "test"))


def flat_settings(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting under the name that users write."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            # Users write training.epochs, not settings.training.epochs.
            yield from flat_settings(value, prefix if key == "settings" else f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _adopt(out: Path) -> None:
    """Note what an older folder holds as its grid, before other cells come to stand beside it."""
    if (out / FOLDER).is_dir() or not any((out / place).exists() for place in (CELLS, PACKED)):
        return
    variants: dict[str, list[str]] = {}
    for name in kept_names(out):
        variants.setdefault(name.partition("/")[0], []).append(name)
    _write(out, GRID, {"experiment": GRID, "variants": variants})


def _write(out: Path, name: str, content: dict[str, Any]) -> None:
    write_atomic(experiment_file(out, name), json.dumps(content, indent=1) + "\n")


def _refuse_other_base(file: Path, kept: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    old, new = dict(flat_settings(_whole(kept))), dict(flat_settings(_whole(given)))
    other = next((key for key in new if old.get(key) != new[key]), None)
    if other is not None:
        raise InputError(
            f"{file}: was begun with {other} = {old.get(other)!r}, not {new[other]!r}. Choose "
            "another --out, or move this file away to begin anew (finished cells are kept)."
        )


def _whole(base: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the defaults of what is newer than its file."""
    settings = settings_from_dict(base["settings"]).model_dump(mode="json")
    return {"on": "test", "supports": "drawn", **base, "settings": settings}


def named_results(out: Path, name: str) -> list[tuple[str, dict[str, Any]]]:
    """The finished cells of an experiment and the names of their columns."""
    found = read_experiment(out, name)
    if name not in (GRID, POOL):
        return found
    labels = with_presets([(label, result["cell"]) for label, result in found])
    return [(label, result) for label, (_, result) in zip(labels, found, strict=True)]
