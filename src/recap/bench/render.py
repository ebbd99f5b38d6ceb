"""Tables as Markdown, CSV or LaTeX.

Markdown is for GitHub and pandoc, LaTeX for booktabs. The CSV ends in lines that begin with "# ",
one for each footnote: its key as in the column notes, the tables that have it, and its text.
Numbers never travel without what must be said of them.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, get_args

from recap.bench.published import Note
from recap.bench.table_model import (
    Cell,
    Column,
    Label,
    Number,
    Row,
    Side,
    Table,
    block_starts,
    footnotes,
    format_number,
    how_to_read,
    note_marks,
    note_once,
)
from recap.errors import SettingsError

Format = Literal["md", "csv", "latex"]

CSV_FIELDS = (
    "table", "row", "column", "ours", "ours_std", "ours_seeds", "ours_rank",
    "published", "published_std", "published_rank", "impossible", "notes",
)  # fmt: skip
_LATEX = {
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


def render(tables: Iterable[Table], fmt: Format) -> str:
    """Write all tables as one text: Markdown, CSV with one line per cell, or LaTeX."""
    writers: dict[str, Callable[[Sequence[Table]], str]] = {
        "md": lambda given: "\n".join(map(markdown, given)),
        "csv": _csv,
        "latex": lambda given: "\n".join(map(latex, given)),
    }
    if fmt not in writers:
        raise SettingsError(f"Unknown format '{fmt}'. Use one of: {', '.join(get_args(Format))}.")
    return writers[fmt](list(tables))


@dataclass(frozen=True)
class Markup:
    """Marks of a language for text; each pattern takes its text in the place of {}."""

    escape: Callable[[str], str]
    note: str
    """The numbers of footnotes."""
    best: str
    second: str
    impossible: Callable[[str], str]
    """The mark of a published number that cannot be."""

    def label(self, label: Label, marks: dict[Note, str]) -> str:
        """Write a label and the numbers of its footnotes."""
        numbers = ", ".join(marks[note] for note in label.notes)
        return self.escape(label.text) + (self.note.replace("{}", numbers) if numbers else "")

    def cell(self, cell: Cell, column: Column, sides: tuple[Side, ...]) -> str:
        """Write ours and, in brackets, the published number; or the one that a table has."""
        published = self._number(cell.published, column)
        published += self.impossible(cell.violation.mark) if cell.violation else ""
        ours = self._number(cell.ours, column)
        if len(sides) == 2 and (cell.ours or cell.published):
            return f"{ours} ({published})"
        return ours if "ours" in sides else published

    def row(self, table: Table, row: Row, marks: dict[Note, str]) -> list[str]:
        """Write the labels and cells of a row."""
        cells = zip(row.cells, table.columns, strict=True)
        labels = [self.label(label, marks) for label in row.labels]
        return [*labels, *(self.cell(*pair, table.sides) for pair in cells)]

    def _number(self, number: Number | None, column: Column) -> str:
        text = self.escape(format_number(number, column.decimals))
        pattern = {"best": self.best, "second": self.second}.get(number.rank if number else "")
        return pattern.replace("{}", text) if pattern else text


def _escape_markdown(text: str) -> str:
    escaped = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in " ".join(text.split()))


# GitHub drops <u>; <ins> is shown underlined there and elsewhere.
MARKDOWN = Markup(_escape_markdown, "<sup>{}</sup>", "**{}**", "<ins>{}</ins>", str)
LATEX = Markup(
    _escape_latex,
    r"\textsuperscript{{}}",
    r"\textbf{{}}",
    r"\underline{{}}",
    lambda mark: f"\\textsuperscript{{{_escape_latex(mark)}}}",
)


def markdown(table: Table) -> str:
    """Write one table under a heading, footnotes below."""
    marks, say = note_marks(table), MARKDOWN
    columns = [
        " ".join(say.label(head, marks) for head in (column.group, column.label) if head)
        for column in table.columns
    ]
    head = [*map(say.escape, table.stubs), *columns]
    align = ["---"] * len(table.stubs) + ["---:"] * len(columns)
    rows = (say.row(table, row, marks) for row in note_once(table.rows))
    lines = [f"### {say.label(table.title, marks)}", "", how_to_read(table), ""]
    lines += [f"| {' | '.join(line)} |" for line in (head, align, *rows)]
    notes = [f"- <sup>{mark}</sup> {say.escape(text)}" for mark, text in footnotes(table)]
    return "\n".join([*lines, "", *notes, ""] if notes else [*lines, ""])


def latex(table: Table) -> str:
    """Write one floating table, footnotes inside it."""
    marks, say = note_marks(table), LATEX
    caption = f"{say.label(table.title, marks)}. {say.escape(how_to_read(table))}"
    notes = [
        f"\\textsuperscript{{{say.escape(mark)}}}~{say.escape(text)}\\par"
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
    shape = "l" * len(table.stubs) + "c" * len(table.columns)
    head = _latex_head(table, marks)
    lines = [f"\\begin{{tabular}}{{{shape}}}", r"\toprule", *head, r"\midrule"]
    for row, starts in zip(note_once(table.rows), block_starts(table), strict=True):
        lines += [r"\midrule"] if starts else []
        lines.append(_latex_line(LATEX.row(table, row, marks)))
    lines += [r"\bottomrule", r"\end{tabular}%"]
    wide = len(table.columns) >= _WIDE_COLUMNS
    return [r"\resizebox{\textwidth}{!}{%", *lines, "}"] if wide else lines


def _latex_head(table: Table, marks: dict[Note, str]) -> list[str]:
    blank, say = len(table.stubs), LATEX
    names = [*map(say.escape, table.stubs)]
    names += [say.label(column.label, marks) for column in table.columns]
    if not any(column.group for column in table.columns):
        return [_latex_line(names)]
    spans, rules, start = [""] * blank, [], blank + 1
    for group, members in groupby(table.columns, key=lambda column: column.group):
        size = len(list(members))
        title = say.label(group, marks) if group else ""
        spans.append(f"\\multicolumn{{{size}}}{{c}}{{{title}}}")
        rules.append(f"\\cmidrule(lr){{{start}-{start + size - 1}}}" if group else "")
        start += size
    return [_latex_line(spans), " ".join(filter(None, rules)), _latex_line(names)]


def _latex_line(parts: Iterable[str]) -> str:
    return " & ".join(parts) + r" \\"


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
    """Explain each key of the notes column, with the tables that have it."""
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
