"""Tables as one self-contained HTML page: no scripts, nothing loaded from elsewhere."""

from collections.abc import Sequence
from html import escape
from itertools import groupby

from recap.benchmark.caveats import Note
from recap.benchmark.table_model import (
    Cell,
    Column,
    Label,
    Number,
    Side,
    Table,
    block_starts,
    footnotes,
    format_number,
    how_to_read,
    note_marks,
    note_once,
)
from recap.report.page import STYLE, document, packaged

_TABLE_STYLE = """\
body { max-width: 110rem; }
.numbers th, .numbers td { padding: .35rem .7rem; white-space: nowrap; border-top: 0; }
.numbers tbody tr:hover { background: var(--notice); }
.numbers tbody th { text-align: left; }
.numbers thead th { text-align: right; }
.numbers thead th.stub { text-align: left; }
.numbers thead th.group { text-align: center; border-bottom: 1px solid var(--line); }
.numbers tbody, .numbers tr.block > * { border-top: 1px solid var(--line); }
.numbers .published { color: var(--quiet); }
.numbers .second { text-decoration: underline; text-underline-offset: .2em; }
.numbers sup { font-size: .75em; line-height: 0; }
.reading { color: var(--quiet); margin: 0 0 .75rem; }
.footnotes { padding: 0; margin: .75rem 0 0; list-style: none; font-size: .875rem; }
.footnotes li { margin: .2rem 0; max-width: 90rem; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_page(tables: Sequence[Table], title: str = "Benchmark tables") -> str:
    """A whole page with all tables."""
    body = "\n".join(html_section(table) for table in tables)
    return document(title, html_style(), f"<h1>{escape(title)}</h1>\n{body}", _POLICY)


def html_style() -> str:
    """The style sheet that `html_section` needs."""
    return packaged(STYLE) + _TABLE_STYLE


def html_section(table: Table) -> str:
    """One table with its footnotes, to be put into a page that has `html_style`."""
    marks = note_marks(table)
    notes = "".join(f"<li><sup>{mark}</sup> {escape(text)}</li>" for mark, text in footnotes(table))
    return (
        f"<section id='{escape(table.key)}'><h2>{_label(table.title, marks)}</h2>\n"
        f"<p class='reading'>{escape(how_to_read(table))}</p>\n"
        f"<div class='scroll'><table class='numbers'>\n<thead>{_head(table, marks)}</thead>\n"
        f"<tbody>\n{_body(table, marks)}\n</tbody></table></div>\n"
        + (f"<ul class='footnotes'>{notes}</ul>" if notes else "")
        + "</section>"
    )


def _head(table: Table, marks: dict[Note, str]) -> str:
    grouped = any(column.group for column in table.columns)
    depth = " rowspan='2'" if grouped else ""
    stubs = "".join(
        f"<th scope='col' class='stub'{depth}>{escape(stub)}</th>" for stub in table.stubs
    )
    names = "".join(f"<th scope='col'>{_label(c.label, marks)}</th>" for c in table.columns)
    if not grouped:
        return f"<tr>{stubs}{names}</tr>"
    groups = ""
    for group, members in groupby(table.columns, key=lambda column: column.group):
        text = _label(group, marks) if group else ""
        size = len(list(members))
        groups += f"<th scope='colgroup' class='group' colspan='{size}'>{text}</th>"
    return f"<tr>{stubs}{groups}</tr>\n<tr>{names}</tr>"


def _body(table: Table, marks: dict[Note, str]) -> str:
    sides = table.sides
    lines = []
    for row, starts in zip(note_once(table.rows), block_starts(table), strict=True):
        heads = "".join(f"<th scope='row'>{_label(label, marks)}</th>" for label in row.labels)
        cells = "".join(
            _cell(cell, column, sides)
            for cell, column in zip(row.cells, table.columns, strict=True)
        )
        opening = "<tr class='block'>" if starts else "<tr>"
        lines.append(f"{opening}{heads}{cells}</tr>")
    return "\n".join(lines)


def _label(label: Label, marks: dict[Note, str]) -> str:
    numbers = ", ".join(marks[note] for note in label.notes)
    return escape(label.text) + (f"<sup>{numbers}</sup>" if numbers else "")


def _cell(cell: Cell, column: Column, sides: tuple[Side, ...]) -> str:
    published = _number(cell.published, column)
    if cell.violation:
        reason = escape(cell.violation.reason)
        published += f"<sup title='{reason}'>{cell.violation.mark}</sup>"
    ours = _number(cell.ours, column)
    if len(sides) == 2 and (cell.ours or cell.published):
        return f"<td>{ours} <span class='published'>({published})</span></td>"
    return f"<td>{ours if 'ours' in sides else published}</td>"


def _number(number: Number | None, column: Column) -> str:
    text = format_number(number, column.decimals)
    rank = number.rank if number else ""
    best, second = f"<strong>{text}</strong>", f"<span class='second'>{text}</span>"
    return {"best": best, "second": second}.get(rank, text)
