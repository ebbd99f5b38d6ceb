"""A folder that `recap score` wrote, read back for its page: table, manifest, regions, previews."""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from recap.errors import InputError
from recap.report.previews import preview_files, shown_rows
from recap.results.table import MANIFEST, TABLE, Row, read_rows
from recap.scoring.regions import REGION_COLUMNS

RegionRow = dict[str, str]
"""A line of a regions table."""


@dataclass(frozen=True)
class Preview:
    """What the page shows of a case: PNGs, and why. Without a map the picture is an overlay."""

    picture: bytes
    map: bytes | None
    why: dict[str, Any]
    support: bytes | None
    """The support image that the explanation names."""

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return sum(len(png) for png in (self.picture, self.map, self.support) if png)


class ScoredFolder:
    """A scored folder; what is missing in it, but for table and manifest, is left out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / TABLE).is_file() or not (folder / MANIFEST).is_file():
            raise InputError(
                f"{folder} holds no results: it has no {TABLE} or no {MANIFEST}. "
                "`recap score BUNDLE PATH… --out DIR` makes them."
            )
        self.rows: Sequence[Row] = read_rows(folder / TABLE)
        for row in self.rows:
            _check(row, folder / TABLE)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What manifest.json says."""
        path = self.folder / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            content["bundle"]["fingerprint"], content["reading"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged. Score again into another --out.") from error
        return content

    @property
    def decisions(self) -> dict[str, Any]:
        """How it was decided; empty without a calibration."""
        return self.manifest.get("decisions") or {}

    @property
    def scale(self) -> tuple[float, float]:
        """The map values drawn from nothing to full strength."""
        low, high = self.manifest["maps"]["drawn_from_to"]
        return float(low), float(high)

    def shown(self) -> list[Row]:
        """The cases that may have pictures."""
        return shown_rows(self.rows)

    def regions(self, row: Row) -> list[RegionRow]:
        """The regions of a case, the strongest first."""
        path = self._inside(row.regions_table)
        if path is None:
            return []
        with path.open(newline="", encoding="utf-8") as file:
            return [line for line in csv.DictReader(file) if _is_region(line)]

    def preview(self, row: Row) -> Preview | None:
        """A case's picture and map, or else its overlay; None if there is neither."""
        files = preview_files(row.case)
        picture, map = self._bytes(files.image), self._bytes(files.map)
        why = self._why(files.why)
        if picture is None or map is None or why.get("sha256") != row.sha256:
            drawn = self._bytes(row.overlay)
            return None if drawn is None else Preview(drawn, None, {}, None)
        support = self._bytes(str(why.get("picture") or ""))
        return Preview(picture, map, why, support)

    def _why(self, name: str) -> dict[str, Any]:
        text = self._bytes(name)
        try:
            content = json.loads(text) if text is not None else {}
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def _bytes(self, name: str) -> bytes | None:
        path = self._inside(name)
        return None if path is None else path.read_bytes()

    def _inside(self, name: str) -> Path | None:
        """A file of the folder; a table that names files elsewhere does not get them shown."""
        if not name:
            return None
        path = (self.folder / name).resolve()
        inside = path.is_relative_to(self.folder.resolve())
        return path if inside and path.is_file() else None


def _is_region(line: RegionRow) -> bool:
    """Whether a line is whole and has numbers where they belong."""
    try:
        return all(float(line[name] or 0) >= -math.inf for name in ("region", *REGION_COLUMNS))
    except (KeyError, TypeError, ValueError):
        return False


def _check(row: Row, table: Path) -> None:
    """Columns of numbers hold numbers; a scored case has a score."""
    try:
        for text in (row.score, row.p_value, row.probability, row.regions, row.images):
            float(text or 0)
        if row.status == "ok":
            float(row.score)
    except ValueError as error:
        raise InputError(f"{table}: the row of {row.case!r} is damaged. Score again.") from error
