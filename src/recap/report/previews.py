"""What the page of a scored folder shows of a case: its picture, its map, and why.

    previews/CASE.png           the picture, or the slice or frame with the highest score
    preview_maps/CASE.png       its map, transparent where nothing is drawn
    why/CASE.json               the explanation of the map's peak, and what the picture shows
    support/000003.png          the normal support images that are named there, if the bundle
                                keeps small pictures of them

Only cases with the highest scores have them: a page with thousands of pictures helps nobody.
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recap._files import write_atomic
from recap.config import ReadingSettings
from recap.data.cases import Found
from recap.errors import RecapError
from recap.io import Case
from recap.progress import Progress, silent
from recap.report.case_overlay import slide_picture
from recap.report.overlay import as_picture, encode_png, map_layer
from recap.results.table import Row
from recap.scoring.bundle_folder import Bundle, thumbnail_name
from recap.types import FloatArray, Image

if TYPE_CHECKING:  # it brings torch, which the page does without
    from recap.scoring.detector import Detector

PREVIEW_PX = 512
SHOWN_CASES = 200


@dataclass(frozen=True)
class PreviewFiles:
    """Where the parts of a case's preview are, relative to the scored folder."""

    image: str
    map: str
    why: str


def preview_files(case: str) -> PreviewFiles:
    """Names of the files of a case."""
    # In folders of their own: a case may be called like another one's map.
    return PreviewFiles(f"previews/{case}.png", f"preview_maps/{case}.png", f"why/{case}.json")


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
        shown = slide_picture(case, _stored_map(out, row), float(row.map_step_px))
        size = case.size_hw or size
        why["xy_px"] = _in_slide(image, why["xy_px"])
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
    """An image's map, and why its peak is one."""
    from recap.scoring.explain import explain

    found = explain(detector, image)
    return found.map, {**found.record(), "note": _note(detector, found.note)}


def _note(detector: "Detector", note: str) -> str:
    runtime = detector.runtime
    if runtime is None or runtime.name == "torch":
        return note
    told = f"Explained with torch; scored with {runtime.name}, whose values differ a little."
    return f"{note} {told}".strip()


def _highest(out: Path, row: Row) -> int:
    """The slice, frame or tile with the highest score."""
    if not row.table:
        return 0
    with (out / row.table).open(newline="", encoding="utf-8") as file:
        scores = [float(line["score"]) for line in csv.DictReader(file)]
    return int(np.argmax(scores))


def _stored_map(out: Path, row: Row) -> FloatArray:
    return np.load(out / row.map, allow_pickle=False)


def _in_slide(tile: Image, xy_px: tuple[int, int]) -> tuple[int, int]:
    row, column = tile.geometry.to_source_px(xy_px[1], xy_px[0])
    return round(column), round(row)


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
