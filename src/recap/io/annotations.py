"""Outlines that pathologists drew on slides: ASAP's XML, as Camelyon16 has it.

Points are (row, column) in full-resolution pixels, counted from the slide's upper left corner, so
that the first pixel reaches from 0 to 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from recap.errors import InputError
from recap.types import BoolArray

# In Camelyon16 "Tumor", "_0" and "_1" are tumour and "_2" is cut out of it again; all that is
# drawn there without a group is tumour as well.
HOLE_GROUPS = {"_2", "exclusion", "normal"}
WITHOUT_AREA = {"dot", "pointset", "measurement"}
MAX_BYTES = 2**26
MAX_COORDINATE = 1e7
# Rows that the edges filled together may cross.
CROSSINGS_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class Polygon:
    """A closed outline; a hole takes away from all others."""

    points: NDArray[np.float64]
    """(N, 2): row, column."""
    hole: bool = False


def read_annotations(path: str | Path) -> list[Polygon]:
    """Read the polygons of an ASAP file, in the file's order."""
    path = Path(path)
    parser = _Parser(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(
                f"{path}: larger than {MAX_BYTES >> 20} MB, which no outline needs.", path=path
            )
        parser.feed(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).", path=path) from error
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise InputError(
            f"{path}: not XML ({error}). Export the annotations again.", path=path
        ) from error
    return parser.polygons()


def rasterise(
    polygons: Sequence[Polygon],
    origin_px: tuple[int, int],
    source_px_per_px: float,
    size_hw: tuple[int, int],
) -> BoolArray:
    """The annotated pixels of a part of a slide: their centre is in a polygon and in no hole."""
    inside, cut = np.zeros(size_hw, dtype=bool), np.zeros(size_hw, dtype=bool)
    for polygon in polygons:
        points = (polygon.points - origin_px) / source_px_per_px
        if (points.max(axis=0) < 0).any() or (points.min(axis=0) > size_hw).any():
            continue
        layer = cut if polygon.hole else inside
        layer |= _fill(points, size_hw)
    return inside & ~cut


def _fill(points: NDArray[np.float64], size_hw: tuple[int, int]) -> BoolArray:
    """Even-odd filling by pixel centres: a crossing of a row toggles all that is right of it."""
    height, width = size_hw
    ends = np.roll(points, -1, axis=0)
    down = (points[:, 0] <= ends[:, 0])[:, None]
    upper, lower = np.where(down, points, ends), np.where(down, ends, points)
    # An edge crosses the rows whose centre is at or below its upper end and above its lower one.
    first, last = (np.clip(np.ceil(end[:, 0] - 0.5), 0, height) for end in (upper, lower))
    crossing = np.flatnonzero(last > first)
    toggles = np.zeros((height, width + 1), dtype=np.uint8)
    together = max(1, CROSSINGS_AT_ONCE // max(1, height))
    for begin in range(0, len(crossing), together):
        edges = crossing[begin : begin + together]
        counts = (last - first)[edges].astype(np.int64)
        edge = np.repeat(edges, counts)
        skipped = np.repeat(counts.cumsum() - counts, counts)
        row = np.arange(len(edge)) - skipped + first[edge].astype(np.int64)
        slope = (lower - upper)[edge]
        column = upper[edge, 1] + (row + 0.5 - upper[edge, 0]) * slope[:, 1] / slope[:, 0]
        start = np.clip(np.ceil(column - 0.5), 0, width).astype(np.int64)
        # Overflow is harmless: only odd or even counts.
        np.add.at(toggles, (row, start), 1)
    return np.asarray(toggles.cumsum(axis=1, dtype=np.uint8)[:, :width] % 2 == 1)


@dataclass
class _Drawn:
    name: str
    kind: str
    group: str
    points: list[tuple[float, float, float]] = field(default_factory=list)


class _Parser:
    """Takes annotations from expat's events, so that no tree and no entity is ever built."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._drawn: list[_Drawn] = []
        self._parents: dict[str, str] = {}
        self._root = ""
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        # Without a document type there are no entities, neither external nor growing ones.
        self._parser.StartDoctypeDeclHandler = self._refuse

    def feed(self, data: bytes) -> None:
        self._parser.Parse(data, True)

    def polygons(self) -> list[Polygon]:
        if self._root != "ASAP_Annotations":
            raise InputError(
                f"{self._path}: begins with <{self._root}>, not with <ASAP_Annotations>. "
                "Give the XML file that ASAP or Camelyon16 made.",
                path=self._path,
            )
        drawn = [one for one in self._drawn if one.kind not in WITHOUT_AREA]
        return [
            Polygon(
                np.array(sorted(one.points, key=lambda point: point[0]))[:, 1:],
                self._is_hole(one.group),
            )
            for one in drawn
            if len(one.points) > 2
        ]

    def _refuse(self, *_: object) -> NoReturn:
        raise InputError(
            f"{self._path}: declares a document type, which annotations have no use for and which "
            "can do harm. Remove the <!DOCTYPE …>.",
            path=self._path,
        )

    def _start(self, tag: str, said: dict[str, str]) -> None:
        self._root = self._root or tag
        if tag == "Annotation":
            name = said.get("Name", f"number {len(self._drawn)}")
            kind, group = said.get("Type", "Polygon").lower(), said.get("PartOfGroup", "None")
            self._drawn.append(_Drawn(name, kind, group))
        elif tag == "Group":
            self._parents[said.get("Name", "")] = said.get("PartOfGroup", "None")
        elif tag == "Coordinate" and self._drawn:
            self._add_point(self._drawn[-1], said)

    def _add_point(self, drawn: _Drawn, said: dict[str, str]) -> None:
        try:
            x, y = float(said["X"]), float(said["Y"])
            order = float(said.get("Order", len(drawn.points)))
        except (KeyError, ValueError):
            x = y = order = math.nan
        if not (abs(x) <= MAX_COORDINATE and abs(y) <= MAX_COORDINATE and math.isfinite(order)):
            raise InputError(
                f"{self._path}: annotation '{drawn.name}' has the point {said}, which is no place "
                "on a slide. Correct or remove it.",
                path=self._path,
            )
        drawn.points.append((order, y, x))

    def _is_hole(self, group: str) -> bool:
        """A group counts as what it is part of, unless its own name says so."""
        seen: set[str] = set()
        while group not in seen:
            if group.lower() in HOLE_GROUPS:
                return True
            seen.add(group)
            group = self._parents.get(group, "None")
        return False
