"""One self-contained HTML page: no scripts, no links to elsewhere, pictures inside."""

import math
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from recap._files import write_atomic
from recap.errors import counted
from recap.report.document import definitions, document, png_source
from recap.report.page_style import STYLE

DISCLAIMER = (
    "<strong>Research software, not a medical device.</strong> Scores and maps point at image "
    "regions that differ from what the model has learned as normal. They are not findings and "
    "must not guide diagnosis or treatment."
)
SCALE_NOTE = (
    "Every map uses this one fixed scale, so colours compare between images. The upper band shows "
    "the colours, the lower band how they look over mid-grey tissue: opacity grows with the value, "
    "and values up to the left end leave the image as it is."
)
LEGEND_ALT = "Colour bar of the fixed scale, from dark (low) to yellow (high)"


@dataclass(frozen=True)
class ReportRow:
    """One image of a report; `label` is the reference label, not the model's verdict."""

    name: str
    label: str | None
    score: float
    input_png: bytes
    map_png: bytes
    truth_png: bytes | None = None
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """What a page shows; the table's first row is its header, the images stay in their order."""

    title: str
    summary: list[tuple[str, str]]
    table: list[list[str]] | None
    notes: list[str]
    rows: list[ReportRow]
    legend_png: bytes


def write_report(report: Report, path: Path) -> None:
    """Write the page to one HTML file that can be mailed, archived and printed."""
    # A file name that is not valid text reaches us with lone surrogates, which UTF-8 cannot hold.
    write_atomic(path, render_report(report).encode("utf-8", errors="replace"))


def render_report(report: Report) -> str:
    """The page as text."""
    parts = [
        f"<header><h1>{escape(report.title)}</h1><p class='notice'>{DISCLAIMER}</p></header>",
        "<main>",
        _summary(report.summary),
        _table(report.table),
        _notes(report.notes),
        _images(report),
        "</main>",
    ]
    return document(report.title, STYLE, "\n".join(part for part in parts if part))


def _summary(facts: list[tuple[str, str]]) -> str:
    if not facts:
        return ""
    return f"<section aria-label='Key facts'>{definitions('facts', facts)}</section>"


def _table(table: list[list[str]] | None) -> str:
    if not table:
        return ""
    head = "".join(f"<th scope='col'>{escape(cell)}</th>" for cell in table[0])
    body = "\n".join(_table_row(row) for row in table[1:])
    return (
        "<section><h2>Metrics</h2><div class='scroll'><table>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div></section>"
    )


def _table_row(row: list[str]) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
    return f"<tr><th scope='row'>{escape(row[0])}</th>{cells}</tr>" if row else ""


def _notes(notes: list[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<section><h2>Notes</h2><ul class='notes'>{items}</ul></section>"


def _images(report: Report) -> str:
    if not report.rows:
        return ""
    # One column count for the whole page, so that pictures have one size in every card.
    columns = 3 if any(row.truth_png is not None for row in report.rows) else 2
    cards = "\n".join(_card(row) for row in report.rows)
    return (
        f"<section><h2>Images <span class='count'>{counted(len(report.rows), 'image')}"
        "</span></h2>\n<div class='legend'>"
        f"{_picture(report.legend_png, LEGEND_ALT)}"
        f"<p>{SCALE_NOTE}</p></div>\n"
        f"<div class='cards columns-{columns}'>\n{cards}\n</div></section>"
    )


def _card(row: ReportRow) -> str:
    figures = [_figure(row.input_png, "Input", row), _figure(row.map_png, "Anomaly map", row)]
    if row.truth_png is not None:
        figures.append(_figure(row.truth_png, "Ground truth", row))
    details = definitions("details", row.details.items()) if row.details else ""
    return (
        f"<article class='card'><div class='top'><h3><bdi>{escape(row.name)}</bdi></h3>"
        f"{_chip(row.label)}</div>{_score(row.score)}"
        f"<div class='figures'>{''.join(figures)}</div>{details}</article>"
    )


def _chip(label: str | None) -> str:
    if label is None:
        return ""
    kind = label if label in ("normal", "abnormal") else "other"
    # Named as the reference, so that nobody takes it for the model's verdict.
    return f"<span class='chip {kind}'>Reference: {escape(label)}</span>"


def _score(score: float) -> str:
    if not math.isfinite(score):
        return "<p class='score'><span>Score</span> <strong>not available</strong></p>"
    percent = 100 * min(1.0, max(0.0, score))
    return (
        f"<p class='score'><span>Score</span> <strong>{score:.3f}</strong>"
        f"<span class='bar' aria-hidden='true'><i style='width:{percent:.1f}%'></i></span></p>"
    )


def _figure(png: bytes, caption: str, row: ReportRow) -> str:
    return (
        f"<figure>{_picture(png, f'{caption} of {row.name}')}"
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _picture(png: bytes, alt: str) -> str:
    return f'<img src="{png_source(png)}" alt="{escape(alt)}">'
