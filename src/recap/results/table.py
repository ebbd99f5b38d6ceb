"""scores.csv: a row per case, readable at any time, also after a kill; and its shards.

A shard is a part of a run's cases, for several machines that write into one folder. A case belongs
to one by its name alone, so machines that never talk to each other agree. Every shard has a table
and a manifest of its own; maps and pictures have the names of their cases and never meet. Whoever
runs next, a shard or the whole, goes on from the rows of all tables.

Values in scores.csv stay as they are, file names included: programs, this one among them, find the
files again by them. A name such as `=2+3.png` is a formula to a spreadsheet that opens the CSV by a
double click; import it as text, or use scores.parquet, whose columns have types.
"""

import csv
import io
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from recap._files import replacing
from recap.data.text_names import as_text, from_text
from recap.errors import InputError, SettingsError, require
from recap.scoring.calibration import verdict, warned
from recap.types import Decision, DomainCheck

TABLE, MANIFEST = "scores.csv", "manifest.json"
PARQUET = "scores.parquet"
INTEGERS = ("images", "regions", "height", "width")
NUMBERS = ("score", "score_prototype", "score_memory", "p_value", "probability", "map_step_px")
FLAGS = ("in_domain",)


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


def columns_of(
    decision: Decision | None, domain: DomainCheck | None, undecided: str = ""
) -> dict[str, str]:
    """Give a decision and the domain's guard as columns of a table of scores.

    `undecided` is why there is no decision. The guard speaks all the same.
    """
    columns: dict[str, str] = {"decision": verdict(decision, domain) or ""}
    if domain is not None:
        columns["in_domain"] = "yes" if domain.in_domain else "no"
    if decision is None:
        return {**columns, "rule": warned(undecided, domain)}
    return {
        **columns,
        "p_value": number_text(decision.p_value),
        "probability": number_text(decision.probability),
        "rule": decision.rule,
    }


@dataclass(frozen=True)
class Shard:
    """Number `number` of `count` parts, counted from 1; 1 of 1 is the whole."""

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def holds(self, case: str) -> bool:
        """Tell whether a case of this name belongs to it."""
        # File names need not be valid text.
        digest = sha256(case.encode("utf-8", errors="surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.number - 1

    def file(self, name: str) -> str:
        """Name a file of the whole for this shard: scores.csv, scores.1-of-4.csv."""
        if self.count == 1:
            return name
        path = Path(name)
        return f"{path.stem}.{self.number}-of-{self.count}{path.suffix}"


WHOLE = Shard()


def parse_shard(text: str) -> Shard:
    """A shard as written on the command line: 1/4."""
    match = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
    number, count = (int(part) for part in match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise SettingsError(f"--shard {text}: write I/N with 1 ≤ I ≤ N, such as 1/4.")
    return Shard(number, count)


def all_of(out: Path, name: str) -> list[Path]:
    """The files of the whole and of all shards that are there, the newest last."""
    path = Path(name)
    pattern = rf"{re.escape(path.stem)}(\.\d+-of-\d+)?{re.escape(path.suffix)}"
    found = [file for file in out.iterdir() if re.fullmatch(pattern, file.name, re.ASCII)]
    return sorted(found, key=lambda file: (file.stat().st_mtime_ns, file.name))


def finished_rows(out: Path, shard: Shard) -> dict[str, Row]:
    """The newest row of each case of a shard, whichever table it stands in, unless it failed."""
    rows = {row.case: row for table in all_of(out, TABLE) for row in read_rows(table)}
    return {case: row for case, row in rows.items() if row.status == "ok" and shard.holds(case)}


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write the table; what is empty in the CSV is null."""
    arrow = require("pyarrow", "tables")
    parquet = require("pyarrow.parquet", "tables")
    types = {**dict.fromkeys(INTEGERS, arrow.int64()), **dict.fromkeys(NUMBERS, arrow.float64())}
    types |= dict.fromkeys(FLAGS, arrow.bool_())
    names = [field.name for field in fields(Row)]
    schema = arrow.schema([(name, types.get(name, arrow.string())) for name in names])
    columns = [[_typed(name, getattr(row, name)) for row in rows] for name in names]
    arrays = [
        arrow.array(values, field.type) for values, field in zip(columns, schema, strict=True)
    ]
    with replacing(path) as file:
        parquet.write_table(arrow.Table.from_arrays(arrays, schema=schema), file)


def _typed(name: str, text: str) -> Any:
    if text == "":
        return None
    if name in INTEGERS:
        return int(text)
    if name in NUMBERS:
        return float(text)
    if name in FLAGS:
        return text == "yes"
    return as_text(text)
