"""scores.csv: one row per case, readable at any time, also after a kill."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO

from recap.atomic import replacing
from recap.errors import InputError


@dataclass(frozen=True)
class Row:
    """One line of scores.csv."""

    case: str
    path: str
    sha256: str
    status: str
    kind: str = ""
    images: str = ""
    score: str = ""
    score_prototype: str = ""
    score_memory: str = ""
    p_value: str = ""
    decision: str = ""
    """normal, abnormal or out-of-domain; empty where nothing was decided."""
    probability: str = ""
    in_domain: str = ""
    """yes or no; empty where that was not looked at."""
    regions: str = ""
    """How many; their table is in regions/."""
    rule: str = ""
    """How it was decided, or why it was not."""
    height: str = ""
    width: str = ""
    map: str = ""
    map_step_px: str = ""
    """Pixels of the source to one value of the map: 1 but for slides."""
    overlay: str = ""
    table: str = ""
    regions_table: str = ""
    error: str = ""


COLUMNS = [field.name for field in fields(Row)]


def read_rows(path: Path) -> list[Row]:
    """Rows of an earlier run; a line cut short by a kill is left out."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        lines = csv.DictReader(file)
        if lines.fieldnames != COLUMNS:
            raise InputError(f"{path} was not written by this version. Choose another --out.")
        return [Row(**line) for line in lines if None not in line.values() and None not in line]


@contextmanager
def appending(path: Path, rows: Iterable[Row]) -> Iterator[Callable[[Row], None]]:
    """Start the table with some rows, and give a function that adds one at once."""
    write_rows(path, rows)
    with path.open("a", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.DictWriter(file, COLUMNS)

        def append(row: Row) -> None:
            writer.writerow(asdict(row))
            file.flush()

        yield append


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write the whole table anew."""
    with replacing(path) as binary, _as_text(binary) as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


@contextmanager
def _as_text(binary: IO[bytes]) -> Iterator[IO[str]]:
    # File names need not be valid UTF-8.
    text = io.TextIOWrapper(binary, "utf-8", errors="surrogateescape", newline="")
    yield text
    text.flush()
    text.detach()


def number_text(value: float | None) -> str:
    """A number as it stands in tables; empty for None."""
    return "" if value is None else f"{value:.8g}"
