"""Keeping the results of cells: a JSON file each or, packed, all of a folder in one table.

    OUT/cells/recap/Brain/4-shot/seed-0-….json
    OUT/cells.jsonl.gz      a line for each cell, its images as columns

A run writes files. `recap bench pack` makes the table of them, for keeping and sharing; whoever
reads results reads both, and where a cell is in both its file counts.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from recap._files import write_atomic
from recap.bench.cells import Cell
from recap.errors import InputError
from recap.methods.registry import settings_from_dict

CELLS, PACKED = "cells", "cells.jsonl.gz"
Result = dict[str, Any]


def result_file(out: Path, cell: Cell) -> Path:
    """Name the file that a cell's result is written to."""
    return _file(out, cell.name)


def write_result(out: Path, cell: Cell, result: Mapping[str, Any]) -> None:
    """Keep a finished cell."""
    content = {"cell": cell.as_json(), **result}
    write_atomic(result_file(out, cell), json.dumps(content, indent=1) + "\n")


def is_done(out: Path, cell: Cell) -> bool:
    """Tell whether a cell has a whole result; a damaged one is run again."""
    _packed(out)  # a damaged table is told: nobody wants all of it to be run again
    try:
        found = read_result(out, cell.name)
        # Settings that the cell was run without are as they always were.
        own = settings_from_dict(found["cell"]["settings"])
        return "metrics" in found and own == cell.settings
    except (InputError, ValueError, TypeError, KeyError):
        return False


def is_kept(out: Path, name: str) -> bool:
    """Tell whether there is a result of a cell's name."""
    return _file(out, name).exists() or name in _packed(out)


def place_of(out: Path, name: str) -> Path:
    """Find the file that a cell's result is in."""
    file = _file(out, name)
    return out / PACKED if not file.exists() and name in _packed(out) else file


def kept_names(out: Path) -> list[str]:
    """List the names of all finished cells of a folder, in order."""
    folder = out / CELLS
    if not folder.is_dir() and not (out / PACKED).is_file():
        raise InputError(
            f"{out}: no results here. Make some with `recap bench run --out {out}`.", path=out
        )
    files = (file.relative_to(folder).with_suffix("") for file in folder.rglob("*.json"))
    names = {file.as_posix() for file in files} | _packed(out).keys()
    return sorted(names, key=lambda name: f"{name}.json".split("/"))


def read_results(out: Path) -> Iterator[Result]:
    """Read all finished cells of a folder, by name."""
    return (read_result(out, name) for name in kept_names(out))


def read_result(out: Path, name: str) -> Result:
    """Read the result of one cell."""
    file = _file(out, name)
    packed = None if file.exists() else _packed(out).get(name)
    with refusing_damage(file if packed is None else out / PACKED):
        if packed is None:
            found: Result = json.loads(file.read_text(encoding="utf-8"))
            return found
        return _unpacked(packed)


@contextmanager
def refusing_damage(file: Path) -> Iterator[None]:
    """Tell whatever fails while a kept result is read as damage of its file."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, EOFError, BadZipFile) as error:
        raise InputError(
            f"{file}: is damaged ({error}). Remove it and run again.", path=file
        ) from error


def pack(out: Path) -> int:
    """Put all finished cells of a folder into its table, and return how many; their files stay."""
    names = kept_names(out)
    lines = []
    for name in names:
        with refusing_damage(place_of(out, name)):
            lines.append(json.dumps(_columns(name, read_result(out, name))) + "\n")
    # Without a date, so that the same results give the same bytes.
    write_atomic(out / PACKED, gzip.compress("".join(lines).encode(), compresslevel=9, mtime=0))
    return len(names)


def _file(out: Path, name: str) -> Path:
    return out / CELLS / f"{name}.json"


def _columns(name: str, result: Result) -> Result:
    """Turn the rows of a result's images into columns, and float32 numbers into few digits."""
    rows: Sequence[Result] = result["images"]
    columns = {key: [row[key] for row in rows] for key in rows[0]} if rows else {}
    short = [key for key, values in columns.items() if all(map(_is_float32, values))]
    for key in short:
        columns[key] = [v if v is None else float(str(np.float32(v))) for v in columns[key]]
    packed = {**result, "images": columns}
    restored = _unpacked({"name": name, "short": short, "result": packed})
    if restored != result:
        raise InputError(f"{name}: has rows of images that differ in their columns. Run it again.")
    return {"name": name, "short": short, "result": packed}


def _is_float32(value: Any) -> bool:
    return value is None or (isinstance(value, float) and float(np.float32(value)) == value)


def _unpacked(line: Result) -> Result:
    columns: dict[str, list[Any]] = dict(line["result"]["images"])
    for key in line["short"]:
        columns[key] = [v if v is None else float(np.float32(v)) for v in columns[key]]
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    return {**line["result"], "images": rows}


def _packed(out: Path) -> Mapping[str, Result]:
    """Read the lines of a folder's table by name; none where there is no table."""
    file = out / PACKED
    try:
        about = file.stat()
    except OSError:
        return {}
    return _read_packed(file, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=4)
def _read_packed(file: Path, changed_ns: int, size: int) -> Mapping[str, Result]:
    with refusing_damage(file):
        lines = gzip.decompress(file.read_bytes()).decode().splitlines()
        return {line["name"]: line for line in map(json.loads, lines)}
