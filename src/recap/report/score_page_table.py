"""The table of a scored folder's page: one row per case, to be sorted and filtered."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Literal

from recap.results.table import Row

State = Literal["abnormal", "out-of-domain", "normal", "scored", "error"]
STATES: dict[State, str] = {
    "abnormal": "abnormal",
    "out-of-domain": "out of domain",
    "normal": "normal",
    "scored": "not decided",
    "error": "failed",
}
DECISIONS: tuple[State, ...] = tuple(STATES)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def state_of(row: Row) -> State:
    """What became of a case."""
    if row.status != "ok":
        return "error"
    return row.decision if row.decision in STATES else "scored"


def chip(row: Row) -> str:
    """The state as a small label."""
    state = state_of(row)
    return f"<span class='chip {state}'>{STATES[state]}</span>"


def cell_text(name: str) -> str:
    """A file's name, safe to be copied into a spreadsheet: there `=…` would be run."""
    return "'" + name if name.startswith(_FORMULA) else name


def number(text: str, digits: int = 4) -> str:
    """A number of the table as shown; a dash where there is none."""
    return f"{float(text):.{digits}g}" if text else "–"


def aligned(text: str, digits: int) -> str:
    """The same with all digits, also those that are 0, as numbers below each other need them."""
    shown = number(text, digits)
    return f"{float(text):#.{digits}g}" if "." in shown else shown


def case_table(rows: Sequence[Row], numbers: Mapping[str, int], pictured: set[str]) -> str:
    """The whole section: filters, count and table, the highest scores first."""
    if not rows:
        return ""
    with_probability = any(row.probability for row in rows)
    several = any(row.kind not in ("", "image") for row in rows)
    heads = [("Case", "text"), ("Result", "text"), ("Score", "number"), ("p-value", "number")]
    heads += [("Probability", "number")] if with_probability else []
    heads += [("Regions", "number")]
    heads += [("Images", "number")] if several else []
    heads += [("Remarks", "text")]
    ordered = sorted(rows, key=lambda row: (row.status == "ok", -float(row.score or "-inf")))
    body = "\n".join(
        _table_row(row, numbers[row.case], row.case in pictured, with_probability, several)
        for row in ordered
    )
    head = "".join(
        f"<th scope='col' data-type='{kind}' aria-sort='none'>"
        f"<button type='button'>{label}</button></th>"
        for label, kind in heads
    )
    return (
        f"<section id='cases'><h2>Cases <span class='count' id='count' aria-live='polite'>"
        f"{len(rows)}</span></h2>{_filters(rows)}"
        "<div class='scroll' tabindex='0' role='region' aria-label='Table of cases'>"
        f"<table id='table'><thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table></div></section>"
    )


def _filters(rows: Sequence[Row]) -> str:
    present = {state_of(row) for row in rows}
    options = "".join(
        f"<option value='{state}'>{label}</option>"
        for state, label in STATES.items()
        if state in present
    )
    return (
        "<div class='filters' role='search'><label>Name <input id='find' type='search' "
        "autocomplete='off' spellcheck='false'></label>"
        f"<label>Result <select id='state'><option value=''>all</option>{options}</select></label>"
        "<label><input id='with-regions' type='checkbox'> With regions only</label></div>"
    )


def _table_row(row: Row, index: int, pictured: bool, with_probability: bool, several: bool) -> str:
    name = f"<bdi>{escape(cell_text(row.case))}</bdi>"
    link = f"<a href='#case-{index}'>{name}</a>" if pictured else name
    state = state_of(row)
    order = DECISIONS.index(state)
    cells = [
        f"<th scope='row'>{link}</th>",
        f"<td data-v='{order}'>{chip(row)}</td>",
        _number_cell(row.score),
        _number_cell(row.p_value, 3),
    ]
    cells += [_number_cell(row.probability, 3)] if with_probability else []
    cells += [_number_cell(row.regions)]
    cells += [_number_cell(row.images)] if several else []
    cells += [f"<td class='remark'>{escape(cell_text(_remark(row)))}</td>"]
    regions = row.regions or "0"
    return (
        f"<tr data-case='{index}' data-state='{state}' data-regions='{escape(regions)}'>"
        f"{''.join(cells)}</tr>"
    )


def _number_cell(text: str, digits: int = 4) -> str:
    value = f"{float(text):.8g}" if text else ""
    return f"<td data-v='{value}'>{aligned(text, digits)}</td>"


def _remark(row: Row) -> str:
    """What failed, and why nothing was decided; the rule itself is told once, above."""
    undecided = row.rule if state_of(row) in ("scored", "out-of-domain") else ""
    undecided, _, _ = undecided.partition("; otherwise ")
    return " · ".join(filter(None, (row.error, undecided)))
