"""Tables as LaTeX with booktabs."""

from collections.abc import Iterable
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

_SPECIAL = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    # A row that starts with a bracket would become an option of the line break before it.
    "[": "{[}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "±": r"$\pm$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "✓": r"$\surd$",
}
_WIDE_COLUMNS = 6


def latex(table: Table) -> str:
    """One floating table, footnotes inside it."""
    marks = note_marks(table)
    caption = f"{_label(table.title, marks)}. {_escape(how_to_read(table))}"
    notes = [
        f"\\textsuperscript{{{_escape(mark)}}}~{_escape(text)}\\par"
        for mark, text in footnotes(table)
    ]
    lines = [
        "% needs \\usepackage{booktabs,graphicx}",
        r"\begin{table*}[t]",
        r"\centering",
        r"\footnotesize",
        f"\\caption{{{caption}}}",
        f"\\label{{tab:{table.key}}}",
        *_tabular(table, marks),
        *([r"\par\medskip", r"\raggedright\scriptsize", *notes] if notes else []),
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _tabular(table: Table, marks: dict[Note, str]) -> list[str]:
    sides = table.sides
    shape = "l" * len(table.stubs) + "c" * len(table.columns)
    lines = [f"\\begin{{tabular}}{{{shape}}}", r"\toprule", *_head(table, marks), r"\midrule"]
    for row, starts in zip(note_once(table.rows), block_starts(table), strict=True):
        labels = [_label(label, marks) for label in row.labels]
        cells = [_cell(*pair, sides) for pair in zip(row.cells, table.columns, strict=True)]
        lines += [r"\midrule"] if starts else []
        lines.append(_line([*labels, *cells]))
    lines += [r"\bottomrule", r"\end{tabular}%"]
    wide = len(table.columns) >= _WIDE_COLUMNS
    return [r"\resizebox{\textwidth}{!}{%", *lines, "}"] if wide else lines


def _head(table: Table, marks: dict[Note, str]) -> list[str]:
    blank = len(table.stubs)
    names = [*map(_escape, table.stubs)]
    names += [_label(column.label, marks) for column in table.columns]
    if not any(column.group for column in table.columns):
        return [_line(names)]
    spans, rules, start = [""] * blank, [], blank + 1
    for group, members in groupby(table.columns, key=lambda column: column.group):
        size = len(list(members))
        title = _label(group, marks) if group else ""
        spans.append(f"\\multicolumn{{{size}}}{{c}}{{{title}}}")
        rules.append(f"\\cmidrule(lr){{{start}-{start + size - 1}}}" if group else "")
        start += size
    return [_line(spans), " ".join(filter(None, rules)), _line(names)]


def _line(parts: Iterable[str]) -> str:
    return " & ".join(parts) + r" \\"


def _label(label: Label, marks: dict[Note, str]) -> str:
    numbers = ", ".join(marks[note] for note in label.notes)
    return _escape(label.text) + (f"\\textsuperscript{{{numbers}}}" if numbers else "")


def _cell(cell: Cell, column: Column, sides: tuple[Side, ...]) -> str:
    mark = f"\\textsuperscript{{{_escape(cell.violation.mark)}}}" if cell.violation else ""
    published = _number(cell.published, column) + mark
    ours = _number(cell.ours, column)
    if len(sides) == 2 and (cell.ours or cell.published):
        return f"{ours} ({published})"
    return ours if "ours" in sides else published


def _number(number: Number | None, column: Column) -> str:
    text = _escape(format_number(number, column.decimals))
    rank = number.rank if number else ""
    return {"best": f"\\textbf{{{text}}}", "second": f"\\underline{{{text}}}"}.get(rank, text)


def _escape(text: str) -> str:
    return "".join(_SPECIAL.get(char, char) for char in " ".join(text.split()))
