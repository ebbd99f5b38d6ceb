"""The whole benchmark as one self-contained HTML page: tables, figures, and what must be known."""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from recap.atomic import write_atomic
from recap.benchmark.caveats import CAVEATS, about_datasets
from recap.benchmark.cells import refusing_damage
from recap.benchmark.collect import collect
from recap.benchmark.experiments import FOLDER, GRID, POOL
from recap.benchmark.figures import Figure, make_figures, render
from recap.benchmark.figures.runs import read_runs, read_variants
from recap.benchmark.figures.sensitivity import SUFFIX
from recap.benchmark.report_facts import run_section, summary_table
from recap.benchmark.report_style import PAGE_STYLE
from recap.benchmark.study_tables import study_tables
from recap.benchmark.table_html import html_section, html_style
from recap.benchmark.table_model import Table
from recap.benchmark.tables import paper_tables
from recap.progress import Progress, silent
from recap.report.overlay import png_source
from recap.report.page import DISCLAIMER, document

SCREEN_DPI = 150
TITLE = "Benchmark report"


@dataclass(frozen=True)
class Section:
    """A piece of the page, and how the table of contents names it."""

    key: str
    name: str
    html: str
    inside: tuple[tuple[str, str], ...] = ()
    """Keys and names of what the contents list below it."""


def write_report(out: Path, file: Path, progress: Progress = silent) -> None:
    """Write the page of a folder of results to one file."""
    write_atomic(file, render_report(out, progress))


def render_report(out: Path, progress: Progress = silent) -> str:
    """The page as text."""
    runs = read_runs(out)
    names = [f.stem for f in sorted((out / FOLDER).glob("*.json")) if not f.name.endswith(SUFFIX)]
    studies = {name: read_variants(out, name) for name in names if name not in (GRID, POOL)}
    ours, published = _split(paper_tables(collect(out)))
    summary = summary_table(runs)
    sections = [
        *([Section("summary", "Summary", html_section(summary))] if runs else []),
        Section("what-was-run", "What was run", run_section(runs, studies)),
        _caveats(),
        _tables("tables", "Tables, ours beside the published ones", ours),
        _tables("studies", "Ablations and sweeps", _study_tables(out)),
        *_figures(out, progress),
        _tables("published", "Published tables without results of ours", published, folded=True),
    ]
    return _page([section for section in sections if section.html])


def _split(tables: Sequence[Table]) -> tuple[list[Table], list[Table]]:
    """Tables that hold a number of ours, and the others."""
    ours = [table for table in tables if "ours" in table.sides]
    return ours, [table for table in tables if "ours" not in table.sides and table.rows]


def _study_tables(out: Path) -> list[Table]:
    tables: list[Table] = []
    for file in sorted((out / FOLDER).glob(f"*{SUFFIX}")):
        with refusing_damage(file):
            tables += study_tables(json.loads(file.read_text(encoding="utf-8")))
    return tables


def _tables(key: str, name: str, tables: Sequence[Table], folded: bool = False) -> Section:
    body = "\n".join(html_section(table) for table in tables)
    if not tables:
        return Section(key, name, "")
    if folded:
        summary = f"<summary>{escape(name)} ({len(tables)})</summary>"
        html = f"<details class='part' id='{key}'>{summary}\n{body}</details>"
        return Section(key, name, html)
    inside = tuple((table.key, table.title.text) for table in tables)
    return Section(key, name, f"<div class='part' id='{key}'>\n{body}\n</div>", inside)


def _caveats() -> Section:
    items = "".join(f"<li>{escape(about_datasets(caveat))}</li>" for caveat in CAVEATS)
    html = (
        "<section id='caveats'><h2>What must be known</h2>\n<p class='reading'>Tables and figures "
        f"repeat these as footnotes where they apply.</p>\n<ul class='notes'>{items}</ul></section>"
    )
    return Section("caveats", "What must be known", html)


def _figures(out: Path, progress: Progress) -> list[Section]:
    made = make_figures(out)
    sections: list[Section] = []
    told: set[str] = set()
    done = 0
    for number, (kind, figures) in enumerate(made.kinds.items(), start=1):
        cards = []
        for figure in figures:
            cards.append(_card(figure, "" if figure.caption in told else figure.caption))
            told.add(figure.caption)
            done += 1
            progress("figures", done, len(made.all), figure.name)
        key, body = f"figures-{number}", f"<div class='plots'>{''.join(cards)}</div>"
        html = f"<section id='{key}'><h2>{escape(kind)}</h2>\n{body}</section>"
        inside = tuple((figure.name, figure.title) for figure in figures)
        sections.append(Section(key, kind, html, inside))
    if made.skipped:
        notes = "".join(f"<li>{escape(k)}: {escape(why)}.</li>" for k, why in made.skipped.items())
        body = f"<h2>Figures left out</h2><ul class='notes'>{notes}</ul>"
        html = f"<section id='skipped'>{body}</section>"
        sections.append(Section("skipped", "Figures left out", html))
    return sections


def _card(figure: Figure, caption: str) -> str:
    """A figure as it stands on the page; what was said of one before it is not said again."""
    png = render(figure, "png", dpi=SCREEN_DPI)[0]
    width_px, height_px = struct.unpack(">II", png[16:24])
    shown = round(width_px * 96 / SCREEN_DPI * 1.25)  # a little above print size, for screens
    return (
        f"<figure class='plot' id='{escape(figure.name)}'>"
        f"<img src='{png_source(png)}' alt='{escape(figure.title)}' "
        f"width='{shown}' height='{round(shown * height_px / width_px)}'>"
        f"<figcaption><strong>{escape(figure.title)}.</strong> {escape(caption)}"
        "</figcaption></figure>\n"
    )


def _page(sections: Sequence[Section]) -> str:
    body = "\n".join(section.html for section in sections)
    head = f"<header><h1>{TITLE}</h1><p class='notice'>{DISCLAIMER}</p></header>"
    return document(
        TITLE,
        html_style() + PAGE_STYLE,
        f"{head}\n{_contents(sections)}\n<main>\n{body}\n</main>",
    )


def _contents(sections: Sequence[Section]) -> str:
    items = ""
    for section in sections:
        below = "".join(f"<li>{_link(key, name)}</li>" for key, name in section.inside)
        items += f"<li>{_link(section.key, section.name)}" + (f"<ul>{below}</ul>" if below else "")
        items += "</li>"
    return f"<nav aria-label='Contents'><h2>Contents</h2><ul>{items}</ul></nav>"


def _link(key: str, name: str) -> str:
    return f"<a href='#{escape(key)}'>{escape(name)}</a>"
