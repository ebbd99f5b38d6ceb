"""Pictures and explanations of cases for a folder's page, written with the results and read back.

    previews/CASE.png           the picture, or the slice or frame with the highest score
    preview_maps/CASE.png       its map, transparent where nothing is drawn
    why/CASE.json               the explanation of the map's peak, and what the picture shows
    support/000003.png          the normal support images that are named there, if the bundle
                                keeps small pictures of them
    references/CASE.png         the outline of what is known to be abnormal, if somebody said so

Only cases with the highest scores have them: a page with thousands of pictures helps nobody.
"""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recap._files import write_atomic
from recap.config import ReadingSettings
from recap.data.cases import Found
from recap.errors import InputError, RecapError
from recap.io import Case
from recap.progress import Progress, silent
from recap.report.overlay import as_picture, encode_png, map_layer, slide_picture
from recap.results.table import MANIFEST, TABLE, Row, read_rows
from recap.scoring.bundle_folder import Bundle, thumbnail_name
from recap.scoring.regions import REGION_COLUMNS
from recap.types import FloatArray, Image

if TYPE_CHECKING:
    from recap.scoring.detector import Detector


PREVIEW_PX = 512
SHOWN_CASES = 200


@dataclass(frozen=True)
class PreviewFiles:
    """The places of the parts of a case's preview, relative to the scored folder."""

    image: str
    map: str
    why: str
    reference: str


def preview_files(case: str) -> PreviewFiles:
    """Names of the files of a case."""
    # In folders of their own: a case may be called like another one's map.
    return PreviewFiles(
        image=f"previews/{case}.png",
        map=f"preview_maps/{case}.png",
        why=f"why/{case}.json",
        reference=f"references/{case}.png",
    )


def shown_rows(rows: Sequence[Row]) -> list[Row]:
    """The scored cases that the page shows with pictures: the highest scores."""
    scored = [row for row in rows if row.status == "ok"]
    return sorted(scored, key=lambda row: -float(row.score))[:SHOWN_CASES]


def write_previews(
    detector: "Detector",
    cases: Sequence[Found],
    rows: Sequence[Row],
    out: Path,
    reading: ReadingSettings,
    bundle: Bundle | None = None,
    progress: Progress = silent,
) -> dict[str, str]:
    """Write the previews that are missing; returns the cases that have none, with the reason.

    `bundle` is where the pictures of the detector's support images are.
    """
    found = {case.name: case for case in cases}
    shown = [row for row in shown_rows(rows) if row.case in found]
    failed: dict[str, str] = {}
    for index, row in enumerate(shown):
        progress("previews", index, len(shown), row.case)
        if _is_there(out, row):
            continue
        try:
            _write(detector, found[row.case].open(reading), row, out, bundle)
        except RecapError as error:
            failed[row.case] = found[row.case].in_words(str(error))
    progress("previews", len(shown), len(shown), "")
    return failed


def _is_there(out: Path, row: Row) -> bool:
    files = preview_files(row.case)
    if not (out / files.image).is_file() or not (out / files.map).is_file():
        return False
    try:
        return json.loads((out / files.why).read_text(encoding="utf-8"))["sha256"] == row.sha256
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write(detector: "Detector", case: Case, row: Row, out: Path, bundle: Bundle | None) -> None:
    number = _highest(out, row)
    image = case.images[number]
    map, why = _explained(detector, image)
    shown: tuple[Image, FloatArray] = (image, map)
    size = image.size_hw
    if case.kind == "slide":
        whole = np.load(out / row.map, allow_pickle=False)
        shown = slide_picture(case, whole, float(row.map_step_px))
        size = case.size_hw or size
        x, y = why["xy_px"]  # of the tile; from here on of the slide
        why["xy_px"] = tuple(round(at) for at in image.geometry.to_source_px(y, x)[::-1])
    if bundle is not None:
        why["picture"] = _support_picture(why, bundle, out)
    record = {
        "sha256": row.sha256,
        "image": number,
        "images": len(case.images),
        "shown_hw": size,
        **why,
    }
    files = preview_files(row.case)
    picture = as_picture(shown[0])
    if shown[0].pixels.ndim == 2:
        picture = picture.convert("L")
    layer = map_layer(shown[1], detector.map_scale, PREVIEW_PX)
    write_atomic(out / files.image, encode_png(picture, PREVIEW_PX))
    write_atomic(out / files.map, encode_png(layer))
    # Last: it says that the others are there.
    write_atomic(out / files.why, json.dumps(record, indent=1) + "\n")


def _explained(detector: "Detector", image: Image) -> tuple[FloatArray, dict[str, Any]]:
    """Give an image's map, and why its peak is one."""
    from recap.scoring.explain import explain

    found = explain(detector, image)
    note, runtime = found.note, detector.runtime
    if runtime is not None and runtime.name != "torch":
        told = f"Explained with torch; scored with {runtime.name}, whose values differ a little."
        note = f"{note} {told}".strip()
    return found.map, {**found.record(), "note": note}


def _highest(out: Path, row: Row) -> int:
    """The slice, frame or tile with the highest score."""
    if not row.table:
        return 0
    with (out / row.table).open(newline="", encoding="utf-8") as file:
        scores = [float(line["score"]) for line in csv.DictReader(file)]
    return int(np.argmax(scores))


def _support_picture(why: dict[str, Any], bundle: Bundle, out: Path) -> str:
    """Copy the picture of the support image that is named, if the bundle has it."""
    origin = (why.get("nearest") or {}).get("origin")
    if origin is None:
        return ""
    picture = bundle.thumbnail(origin["support"])
    if picture is None:
        return ""
    name = thumbnail_name(origin["support"])
    if not (out / name).is_file():
        write_atomic(out / name, picture)
    return name


RegionRow = dict[str, str]
"""A line of a regions table."""


@dataclass(frozen=True)
class Preview:
    """Picture, map and explanation of a case; without a map the picture is an overlay."""

    picture: bytes
    map: bytes | None
    why: dict[str, Any]
    support: bytes | None
    """The support image that the explanation names."""
    reference: bytes | None = None
    """The outline of what is known to be abnormal."""

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        pictures = (self.picture, self.map, self.support, self.reference)
        return sum(len(png) for png in pictures if png)


@dataclass(frozen=True)
class Known:
    """Knowledge of the cases from elsewhere, as the manifest's entry `known` has it.

    The detector has no part in it; the page shows it beside what the detector says.
    """

    title: str = ""
    measures: dict[str, str] = field(default_factory=dict)
    """Shown as they are, such as an AUROC."""
    notes: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    """normal or abnormal, by case."""


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
        """Content of manifest.json."""
        path = self.folder / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            content["bundle"]["fingerprint"], content["reading"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged. Score again into another --out.") from error
        return content

    @property
    def decisions(self) -> dict[str, Any]:
        """Rule and thresholds of the decisions; empty without a calibration."""
        return self.manifest.get("decisions") or {}

    @property
    def known(self) -> Known:
        """Knowledge of the cases from elsewhere, if the manifest has some."""
        try:
            return Known(**self.manifest.get("known", {}))
        except TypeError as error:
            raise InputError(f"{self.folder / MANIFEST} is damaged. Score again.") from error

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
        return Preview(picture, map, why, support, self._bytes(files.reference))

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
    """Tell whether a line is whole and has numbers where they belong."""
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
