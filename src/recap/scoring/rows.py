"""scores.csv: one row per case, readable at any time, also after a kill."""

import csv
import io
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO

from recap._files import replacing
from recap.data.text_names import as_text, from_text
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
    dicom: str = ""
    """The folder of its DICOM results; empty where there are none of these very files."""
    ignore_sha256: str = ""
    """The hash of its ignore mask; empty without one."""
    error: str = ""
    """Why it failed; of a case that was scored, why it has no DICOM results."""

    @property
    def files(self) -> list[str]:
        """Files of results that it names, within the folder of its table."""
        named = (self.map, self.overlay, self.table, self.regions_table)
        return [file for file in named if file]


COLUMNS = [field.name for field in fields(Row)]
_ADDED = {"dicom", "ignore_sha256"}


def _written(row: Row) -> dict[str, str]:
    return {column: as_text(value) for column, value in vars(row).items()}


def read_rows(path: Path) -> list[Row]:
    """Rows of an earlier run, the last of each case; a line cut short by a kill is left out.

    A run that is killed leaves the rows of cases that it scored again behind their earlier ones.
    """
    if not path.exists():
        return []
    # A kill may cut a line within a letter.
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        lines = csv.DictReader(file)
        # Tables of earlier versions lack some columns; what those would hold is made anew.
        if not set(COLUMNS) - _ADDED <= set(lines.fieldnames or ()) <= set(COLUMNS):
            raise InputError(f"{path} was not written by this version. Choose another --out.")
        whole = [line for line in lines if None not in line.values() and None not in line]
    rows = [Row(**{column: from_text(value) for column, value in line.items()}) for line in whole]
    return list({row.case: row for row in rows}.values())


class OpenTable:
    """The table of a run under way: a row is in the file as soon as it is added."""

    def __init__(self, file: IO[str], finished: Mapping[str, Row]) -> None:
        self.finished = finished
        """Rows of earlier runs, by case."""
        self.rows: dict[str, Row] = {}
        """Rows of this run, taken over or new."""
        self._file = file
        self._writer = csv.DictWriter(file, COLUMNS)
        self._lock = threading.Lock()

    def keep(self, case: str, path: str) -> None:
        """Take an earlier row over; its files may have moved since."""
        self.rows[case] = replace(self.finished[case], path=path)

    def add(self, row: Row) -> None:
        """Add a new row; from any thread."""
        with self._lock:
            self.rows[row.case] = row
            self._writer.writerow(_written(row))
            self._file.flush()


@contextmanager
def appending(path: Path, finished: Mapping[str, Row]) -> Iterator[OpenTable]:
    """Start a table with the rows of earlier runs, and add to it.

    A run that ends early leaves no row there that it has a newer one of.
    """
    write_rows(path, finished.values())
    with path.open("a", newline="", encoding="utf-8") as file:
        table = OpenTable(file, finished)
        try:
            yield table
        except BaseException:
            with suppress(InputError):  # what ended the run is what to tell; `read_rows` copes
                write_rows(path, {**finished, **table.rows}.values())
            raise


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write the whole table anew."""
    with replacing(path) as binary, _as_text(binary) as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(_written(row) for row in rows)


@contextmanager
def _as_text(binary: IO[bytes]) -> Iterator[IO[str]]:
    text = io.TextIOWrapper(binary, "utf-8", newline="")
    yield text
    text.flush()
    text.detach()


def number_text(value: float | None) -> str:
    """A number as it stands in tables; empty for None."""
    return "" if value is None else f"{value:.8g}"
