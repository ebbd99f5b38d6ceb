"""A table of numbers: ours and the published one in each cell, ranked, with footnotes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from recap.bench.possible import Violation
from recap.bench.published import Note

Rank = Literal["best", "second", ""]
Better = Literal["high", "low", ""]
Side = Literal["ours", "published"]

MISSING = "–"


@dataclass(frozen=True)
class Number:
    """A value in the column's unit; `seeds` is how many runs it is the mean of, where known."""

    value: float
    std: float | None = None
    seeds: int | None = None
    rank: Rank = ""


@dataclass(frozen=True)
class Cell:
    """Our number and the published one, either of which may be missing."""

    ours: Number | None = None
    published: Number | None = None
    violation: Violation | None = None


@dataclass(frozen=True)
class Label:
    """The text of a row or column head with its footnotes."""

    text: str
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Column:
    """One column; neighbours with the same `group` share a head above theirs."""

    label: Label
    group: Label | None = None
    decimals: int = 2
    better: Better = "high"


@dataclass(frozen=True)
class Row:
    """One row: its labels, one for each of the table's `stubs`, and its cells."""

    labels: tuple[Label, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A whole table; `key` names it in files, `stubs` head the columns of row labels."""

    key: str
    title: Label
    stubs: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def cells(self) -> list[Cell]:
        """All cells, row by row."""
        return [cell for row in self.rows for cell in row.cells]

    @property
    def sides(self) -> tuple[Side, ...]:
        """The kinds of numbers that the table holds, ours first."""
        kinds: tuple[Side, ...] = ("ours", "published")
        return tuple(k for k in kinds if any(getattr(cell, k) is not None for cell in self.cells))


def rank_cells(
    cells: Sequence[Cell], better: Sequence[Better], decimals: Sequence[int]
) -> list[Cell]:
    """Mark the best and second of the cells, ours and published apart.

    Numbers that print alike share a rank, a lone number has none, and a published number that
    cannot be takes no part.
    """
    ours = _ranks([cell.ours for cell in cells], better, decimals)
    possible = [None if cell.violation else cell.published for cell in cells]
    published = _ranks(possible, better, decimals)
    return [
        replace(cell, ours=_with(cell.ours, mine), published=_with(cell.published, theirs))
        for cell, mine, theirs in zip(cells, ours, published, strict=True)
    ]


def rank_across(row: Row, columns: Sequence[Column]) -> Row:
    """Rank the cells of one row against each other."""
    better, decimals = [c.better for c in columns], [c.decimals for c in columns]
    return replace(row, cells=tuple(rank_cells(row.cells, better, decimals)))


def rank_down(rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    """Rank the cells of each column against each other."""
    if not rows:
        return []
    ranked = [
        rank_cells(cells, [column.better] * len(rows), [column.decimals] * len(rows))
        for column, cells in zip(columns, zip(*(r.cells for r in rows), strict=True), strict=True)
    ]
    return [
        replace(row, cells=tuple(cells))
        for row, cells in zip(rows, zip(*ranked, strict=True), strict=True)
    ]


def note_once(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Keep the footnotes of a label only where it is first seen in its column of labels."""
    seen: set[tuple[int, Label]] = set()
    result = []
    for row in rows:
        labels = [
            replace(label, notes=()) if (place, label) in seen else label
            for place, label in enumerate(row.labels)
        ]
        seen.update(enumerate(row.labels))
        result.append(replace(row, labels=tuple(labels)))
    return tuple(result)


def note_marks(table: Table) -> dict[Note, str]:
    """Number the footnotes in the order in which a reader meets them."""
    marks: dict[Note, str] = {}
    for label in _labels(table):
        for note in label.notes:
            marks.setdefault(note, str(len(marks) + 1))
    return marks


def footnotes(table: Table) -> list[tuple[str, str]]:
    """The footnotes below the table: mark and text, caveats first, then what cannot be."""
    broken = [cell.violation for cell in table.cells if cell.violation]
    reasons = {(violation.mark, violation.reason): None for violation in broken}
    return [(mark, note.text) for note, mark in note_marks(table).items()] + sorted(reasons)


def format_number(number: Number | None, decimals: int) -> str:
    """A number with its spread, or a dash."""
    if number is None:
        return MISSING
    spread = "" if number.std is None else f" ± {number.std:.{decimals}f}"
    return f"{number.value:.{decimals}f}{spread}"


def how_to_read(table: Table) -> str:
    """The sentence below the title: what stands where, and over how many seeds."""
    if "ours" not in table.sides:
        return "As published. Best bold, second underlined."
    seeds = sorted({cell.ours.seeds for cell in table.cells if cell.ours and cell.ours.seeds})
    runs = ""
    if seeds and seeds[-1] > 1:
        span = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        runs = f" Ours is the mean ± standard deviation over {span} seeds."
    if "published" not in table.sides:
        return f"Ours only; best bold, second underlined.{runs}"
    return (
        "Ours first, the published value in brackets; best bold, second underlined, ours and "
        f"published apart.{runs}"
    )


def block_starts(table: Table) -> list[bool]:
    """Tell for each row whether a rule belongs above it: where a shared first label changes."""
    first = [row.labels[0].text for row in table.rows]
    shared = len(set(first)) < len(first)
    return [shared and index > 0 and text != first[index - 1] for index, text in enumerate(first)]


def _labels(table: Table) -> Iterator[Label]:
    yield table.title
    for column in table.columns:
        if column.group:
            yield column.group
        yield column.label
    for row in table.rows:
        yield from row.labels


def _ranks(
    numbers: Sequence[Number | None], better: Sequence[Better], decimals: Sequence[int]
) -> list[Rank]:
    # Larger is better for all keys, so that one order serves scores and latencies.
    keys = [
        round(number.value if sense == "high" else -number.value, places)
        if number and sense
        else None
        for number, sense, places in zip(numbers, better, decimals, strict=True)
    ]
    present = [key for key in keys if key is not None]
    if len(present) < 2:
        return [""] * len(keys)
    places: dict[float | None, Rank] = dict(
        zip(sorted(set(present), reverse=True), ("best", "second"), strict=False)
    )
    return [places.get(key, "") for key in keys]


def _with(number: Number | None, rank: Rank) -> Number | None:
    return replace(number, rank=rank) if number else None
