"""The table and the histogram of a scored folder's page: one row and one count per case."""

import math
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
    """Name what became of a case."""
    if row.status != "ok":
        return "error"
    return row.decision if row.decision in STATES else "scored"


def chip(row: Row) -> str:
    """The state as a small label."""
    state = state_of(row)
    return f"<span class='chip {state}'>{STATES[state]}</span>"


def reference_chip(label: str) -> str:
    """Show what a case is known to be, named so that nobody takes it for the verdict."""
    return f"<span class='chip reference'>known: {escape(label)}</span>" if label else ""


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


def case_table(
    rows: Sequence[Row],
    numbers: Mapping[str, int],
    pictured: set[str],
    labels: Mapping[str, str],
) -> str:
    """Write the whole section: filters, count and table, the highest scores first."""
    if not rows:
        return ""
    with_probability = any(row.probability for row in rows)
    several = any(row.kind not in ("", "image") for row in rows)
    heads = [("Case", "text"), ("Result", "text")]
    heads += [("Known to be", "text")] if labels else []
    heads += [("Score", "number"), ("p-value", "number")]
    heads += [("Probability", "number")] if with_probability else []
    heads += [("Regions", "number")]
    heads += [("Images", "number")] if several else []
    heads += [("Remarks", "text")]
    ordered = sorted(rows, key=lambda row: (row.status == "ok", -float(row.score or "-inf")))
    body = "\n".join(
        _table_row(
            row,
            numbers[row.case],
            row.case in pictured,
            labels.get(row.case, "–") if labels else None,
            with_probability,
            several,
        )
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


def _table_row(
    row: Row,
    index: int,
    pictured: bool,
    label: str | None,
    with_probability: bool,
    several: bool,
) -> str:
    name = f"<bdi>{escape(cell_text(row.case))}</bdi>"
    link = f"<a href='#case-{index}'>{name}</a>" if pictured else name
    state = state_of(row)
    order = DECISIONS.index(state)
    cells = [
        f"<th scope='row'>{link}</th>",
        f"<td data-v='{order}'>{chip(row)}</td>",
    ]
    cells += [] if label is None else [f"<td class='text'>{escape(label)}</td>"]
    cells += [_number_cell(row.score), _number_cell(row.p_value, 3)]
    cells += [_number_cell(row.probability, 3)] if with_probability else []
    cells += [_number_cell(row.regions)]
    cells += [_number_cell(row.images)] if several else []
    # The rule of those that were decided is told once, above.
    undecided = (
        row.rule.partition("; otherwise ")[0] if state in ("scored", "out-of-domain") else ""
    )
    remark = " · ".join(filter(None, (row.error, undecided)))
    cells += [f"<td class='remark'>{escape(cell_text(remark))}</td>"]
    regions = row.regions or "0"
    return (
        f"<tr data-case='{index}' data-state='{state}' data-regions='{escape(regions)}'>"
        f"{''.join(cells)}</tr>"
    )


def _number_cell(text: str, digits: int = 4) -> str:
    value = f"{float(text):.8g}" if text else ""
    return f"<td data-v='{value}'>{aligned(text, digits)}</td>"


FEWEST_BINS, MOST_BINS = 10, 30
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 230, 44, 16, 26, 38


def histogram(rows: Sequence[Row], threshold: float | None) -> str:
    """Draw the numbers of cases by score and by what became of them; empty without scores."""
    scored = [(float(row.score), state_of(row)) for row in rows if row.status == "ok" and row.score]
    values = [value for value, _ in scored if math.isfinite(value)]
    if not values:
        return ""
    edges = bin_edges(values, threshold)
    counts = _count(scored, edges)
    most = max(sum(count.values()) for count in counts)
    present = [state for state in DECISIONS if any(count.get(state) for count in counts)]
    body = _axes(edges, most) + "".join(_bars(counts, edges, most, present))
    if threshold is not None and edges[0] <= threshold <= edges[-1]:
        body += _mark(threshold, edges)
    said = f"Histogram of {len(values)} scores from {min(values):.4g} to {max(values):.4g}"
    if threshold is not None:
        above = sum(value >= threshold for value in values)
        said += f"; {above} reach the threshold of {threshold:.4g}"
    keys = "".join(f"<li class='key {state}'>{STATES[state]}</li>" for state in present)
    return (
        "<section><h2>Scores</h2><figure class='chart'>"
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{escape(said)}'>"
        f"{body}</svg><figcaption><ul class='keys'>{keys}</ul></figcaption></figure></section>"
    )


def bin_edges(values: Sequence[float], threshold: float | None = None) -> list[float]:
    """Edges of equal bins that hold all values, with one edge on the threshold if it is among them.

    So no bar mixes cases from both sides of it.
    """
    low, high = min(values), max(values)
    span = high - low or abs(high) or 1.0
    # Shown even where all cases are on one side of it, unless that would squeeze the bars together.
    if threshold is not None and low - span <= threshold <= high + span:
        low, high = min(low, threshold), max(high, threshold)
    bins = min(MOST_BINS, max(FEWEST_BINS, round(2 * math.sqrt(len(values)))))
    width = (high - low or abs(low) or 1.0) / bins
    start = low
    if threshold is not None and low < threshold <= high:
        start = threshold - math.ceil((threshold - low) / width) * width
    count = max(1, math.ceil((high - start) / width - 1e-9))
    edges = [start + index * width for index in range(count + 1)]
    if edges[-1] <= max(values):  # the highest value belongs to the last bin
        edges.append(edges[-1] + width)
    return edges


def _count(scored: Sequence[tuple[float, State]], edges: Sequence[float]) -> list[dict[State, int]]:
    counts: list[dict[State, int]] = [{} for _ in edges[1:]]
    width = edges[1] - edges[0]
    for value, state in scored:
        if not math.isfinite(value):
            continue
        index = min(len(counts) - 1, max(0, math.floor((value - edges[0]) / width + 1e-9)))
        counts[index][state] = counts[index].get(state, 0) + 1
    return counts


def _bars(
    counts: Sequence[dict[State, int]],
    edges: Sequence[float],
    most: int,
    present: Sequence[State],
) -> list[str]:
    bars = []
    for index, count in enumerate(counts):
        left, right = _x(edges[index], edges), _x(edges[index + 1], edges)
        below = 0
        for state in reversed(present):
            number = count.get(state, 0)
            if not number:
                continue
            top, bottom = _y(below + number, most), _y(below, most)
            below += number
            range_ = f"{edges[index]:.4g} to {edges[index + 1]:.4g}"
            bars.append(
                f"<rect class='{state}' x='{left + 0.5:.2f}' y='{top:.2f}' "
                f"width='{max(0.5, right - left - 1):.2f}' height='{bottom - top:.2f}'>"
                f"<title>{range_}: {number} {STATES[state]}</title></rect>"
            )
    return bars


def _axes(edges: Sequence[float], most: int) -> str:
    floor = _y(0, most)
    parts = [f"<path class='axis' d='M{_LEFT} {floor:.1f}H{_WIDTH - _RIGHT}'/>"]
    for value in ticks(edges[0], edges[-1]):
        x = _x(value, edges)
        parts.append(f"<path class='axis' d='M{x:.1f} {floor:.1f}v4'/>")
        parts.append(f"<text x='{x:.1f}' y='{floor + 17:.1f}' class='mid'>{value:g}</text>")
    for count in ticks(0, most, 4):
        if count == int(count):
            y = _y(count, most)
            line = f"M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"
            parts.append(f"<path class='grid' d='{line}'/>" if count else "")
            parts.append(f"<text x='{_LEFT - 7}' y='{y + 4:.1f}' class='end'>{count:g}</text>")
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f"<text x='{middle}' y='{_HEIGHT - 3}' class='mid'>score</text>")
    parts.append(f"<text x='4' y='{_TOP - 12}'>cases</text>")
    return "".join(parts)


def _mark(threshold: float, edges: Sequence[float]) -> str:
    x = _x(threshold, edges)
    side = "end" if x > (_LEFT + _WIDTH) / 2 else ""
    shift = -6 if side else 6
    return (
        f"<path class='threshold' d='M{x:.1f} {_TOP - 16}V{_HEIGHT - _BOTTOM}'/>"
        f"<text class='strong {side}' x='{x + shift:.1f}' y='{_TOP - 12}'>"
        f"abnormal from {threshold:.4g} up</text>"
    )


def ticks(low: float, high: float, about: int = 7) -> list[float]:
    """Round numbers between two values, about so many."""
    span = high - low
    if not span > 0:
        return [low]
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{index * step:.10g}") for index in range(first, last + 1)]


def _x(value: float, edges: Sequence[float]) -> float:
    share = (value - edges[0]) / (edges[-1] - edges[0])
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(count: float, most: int) -> float:
    return _HEIGHT - _BOTTOM - count / most * (_HEIGHT - _TOP - _BOTTOM)
