"""One door to all formats, and tables as CSV.

The CSV ends in lines that begin with "# ", one for each footnote: its key as in the column notes,
the tables that have it, and its text. Numbers never travel without what must be said of them.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, get_args

from recap.benchmark.caveats import Note
from recap.benchmark.table_html import html_page
from recap.benchmark.table_latex import latex
from recap.benchmark.table_markdown import markdown
from recap.benchmark.table_model import Cell, Column, Number, Row, Table, note_marks
from recap.errors import SettingsError

Format = Literal["md", "csv", "latex", "html"]

CSV_FIELDS = (
    "table", "row", "column", "ours", "ours_std", "ours_seeds", "ours_rank",
    "published", "published_std", "published_rank", "impossible", "notes",
)  # fmt: skip


def render(tables: Iterable[Table], fmt: Format) -> str:
    """All tables as one text: Markdown, CSV with one line per cell, LaTeX, or an HTML page."""
    writers: dict[str, Callable[[Sequence[Table]], str]] = {
        "md": lambda given: "\n".join(map(markdown, given)),
        "csv": _csv,
        "latex": lambda given: "\n".join(map(latex, given)),
        "html": html_page,
    }
    if fmt not in writers:
        raise SettingsError(f"Unknown format '{fmt}'. Use one of: {', '.join(get_args(Format))}.")
    return writers[fmt](list(tables))


def _csv(tables: Sequence[Table]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for table in tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                writer.writerow(_csv_row(table, row, column, cell))
    return text.getvalue() + "".join(f"# {line}\n" for line in _csv_notes(tables))


def _csv_notes(tables: Sequence[Table]) -> Iterator[str]:
    """What each key of the notes column means, and in which tables it does."""
    found: dict[Note, list[str]] = {}
    for table in tables:
        for note in note_marks(table):
            found.setdefault(note, []).append(table.key)
    for note, keys in found.items():
        yield f"{note.key} ({', '.join(keys)}): {' '.join(note.text.split())}"


def _csv_row(table: Table, row: Row, column: Column, cell: Cell) -> list[str]:
    heads = [column.group, column.label] if column.group else [column.label]
    names = [label.text for label in row.labels if label.text]
    ours, published = cell.ours, cell.published
    notes = [note.key for label in (table.title, *heads, *row.labels) for note in label.notes]
    return [
        table.key,
        " / ".join(names),
        " / ".join(head.text for head in heads),
        *_csv_number(ours, column.decimals + 2),
        str(ours.seeds or "") if ours else "",
        ours.rank if ours else "",
        *_csv_number(published, column.decimals),
        published.rank if published else "",
        cell.violation.reason if cell.violation else "",
        " ".join(notes),
    ]


def _csv_number(number: Number | None, decimals: int) -> list[str]:
    if number is None:
        return ["", ""]
    spread = "" if number.std is None else f"{number.std:.{decimals}f}"
    return [f"{number.value:.{decimals}f}", spread]
