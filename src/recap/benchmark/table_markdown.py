"""Tables as Markdown that GitHub and pandoc render."""

import re
from collections.abc import Iterable

from recap.benchmark.caveats import Note
from recap.benchmark.table_model import (
    Cell,
    Column,
    Label,
    Number,
    Side,
    Table,
    footnotes,
    format_number,
    how_to_read,
    note_marks,
    note_once,
)


def markdown(table: Table) -> str:
    """One table under a heading, footnotes below."""
    marks, sides = note_marks(table), table.sides
    columns = [_head(column, marks) for column in table.columns]
    head = [*map(_escape, table.stubs), *columns]
    align = ["---"] * len(table.stubs) + ["---:"] * len(columns)
    lines = [f"### {_label(table.title, marks)}", "", how_to_read(table), ""]
    lines += [_line(head), _line(align)]
    for row in note_once(table.rows):
        cells = [_cell(*pair, sides) for pair in zip(row.cells, table.columns, strict=True)]
        lines.append(_line([*(_label(label, marks) for label in row.labels), *cells]))
    notes = [f"- <sup>{mark}</sup> {_escape(text)}" for mark, text in footnotes(table)]
    return "\n".join([*lines, "", *notes, ""] if notes else [*lines, ""])


def _line(parts: Iterable[str]) -> str:
    return "| " + " | ".join(parts) + " |"


def _head(column: Column, marks: dict[Note, str]) -> str:
    heads = [column.group, column.label] if column.group else [column.label]
    return " ".join(_label(head, marks) for head in heads)


def _label(label: Label, marks: dict[Note, str]) -> str:
    numbers = ", ".join(marks[note] for note in label.notes)
    return _escape(label.text) + (f"<sup>{numbers}</sup>" if numbers else "")


def _cell(cell: Cell, column: Column, sides: tuple[Side, ...]) -> str:
    published = _number(cell.published, column) + (cell.violation.mark if cell.violation else "")
    ours = _number(cell.ours, column)
    if len(sides) == 2 and (cell.ours or cell.published):
        return f"{ours} ({published})"
    return ours if "ours" in sides else published


def _number(number: Number | None, column: Column) -> str:
    text = format_number(number, column.decimals)
    rank = number.rank if number else ""
    # GitHub drops <u>; <ins> is shown underlined there and elsewhere.
    return {"best": f"**{text}**", "second": f"<ins>{text}</ins>"}.get(rank, text)


def _escape(text: str) -> str:
    escaped = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
