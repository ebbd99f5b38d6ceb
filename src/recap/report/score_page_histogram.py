"""The histogram of scores, as inline SVG."""

import math
from collections.abc import Sequence
from html import escape

from recap.report.score_page_table import DECISIONS, STATES, State, state_of
from recap.results.table import Row

FEWEST_BINS, MOST_BINS = 10, 30
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 230, 44, 16, 26, 38


def histogram(rows: Sequence[Row], threshold: float | None) -> str:
    """How many cases have which score, by what became of them; empty without scores."""
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
