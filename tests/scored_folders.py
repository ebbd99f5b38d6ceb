"""Scored folders made by hand and read back, and a parser that fails on tags that do not nest."""

import csv
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from recap.report.overlay import as_picture, encode_png, map_layer
from recap.report.previews import preview_files
from recap.results.table import Row, write_rows
from recap.scoring.regions import regions_table
from recap.types import Image, Region

VOID = {"meta", "img", "input"}
MANIFEST: dict[str, Any] = {
    "status": "complete",
    "seconds": 1.5,
    "started_unix": 1_800_000_000.0,
    "bundle": {
        "fingerprint": "abcdef0123456789",
        "mode": "few-shot",
        "statement": "Prototypes and a memory.",
        "settings": {"preset": "fast"},
        "encoder": {"name": "tiny", "sha256": "0"},
    },
    "reading": {},
    "decisions": {
        "rule": "abnormal from 0.5 up",
        "guarantee": "At most 5 %.",
        "threshold": 0.5,
        "map_level": 0.3,
    },
    "maps": {"drawn_from_to": [0.1, 0.4]},
}


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def scores_by_case(out: Path) -> dict[str, dict[str, str]]:
    """The rows of a scored folder's table."""
    return {row["case"]: row for row in read_table(out / "scores.csv")}


def picture_png(value: float = 0.5, side: int = 12) -> bytes:
    return encode_png(as_picture(Image(np.full((side, side), value, np.float32), "x")))


def row(name: str, score: float = 0.7, **changes: str) -> Row:
    """A scored case; abnormal from 0.5 up."""
    given = {
        "case": name,
        "path": name,
        "sha256": f"sha of {name}",
        "status": "ok",
        "kind": "image",
        "images": "1",
        "score": f"{score:.8g}",
        "p_value": "0.2",
        "decision": "abnormal" if score >= 0.5 else "normal",
        "regions": "0",
    }
    return Row(**{**given, **changes})


def failed(name: str, error: str = "cannot be read") -> Row:
    return Row(name, name, "", "error", error=error)


def part(layer: int, source: str, evidence: float) -> dict[str, Any]:
    return {
        "layer": layer,
        "source": source,
        "weight": 0.25,
        "evidence": evidence,
        "amount": 0.25 * evidence,
    }


def explanation(name: str, **changes: Any) -> dict[str, Any]:
    origin = {"support": 3, "name": "normal-3.png", "xy_px": [4.5, 2.5], "size_hw": [12, 12]}
    parts = [part(1, "prototype", 0.9), part(2, "prototype", 0.5)]
    parts += [part(1, "memory", 0.2), part(2, "memory", 0.4)]
    nearest = {"layer": 2, "branch": "seg", "distance": 0.8, "origin": {**origin, "copy": 0}}
    content = {
        "sha256": f"sha of {name}",
        "image": 0,
        "images": 1,
        "shown_hw": [12, 12],
        "xy_px": [7, 5],
        "map_value": 0.5,
        "map_parts": parts,
        "score_parts": parts,
        "nearest": nearest,
        "note": "",
    }
    return {**content, **changes}


def region(image: int = 0, area_mm2: float | None = None) -> Region:
    return Region(image, 6, area_mm2, (2, 3, 5, 5), (3.0, 3.5), 0.9, (3, 4), 0.7)


def write_preview(folder: Path, name: str, **changes: Any) -> None:
    files = preview_files(name)
    map = np.linspace(0, 1, 144, dtype=np.float32).reshape(12, 12)
    contents = {
        files.image: picture_png(),
        files.map: encode_png(map_layer(map)),
        files.why: json.dumps(explanation(name, **changes)).encode(),
    }
    for file, content in contents.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)


def write_regions(folder: Path, name: str, regions: list[Region]) -> dict[str, str]:
    """Writes a case's regions; returns the columns of its row."""
    file = f"regions/{name}.csv"
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(regions_table(regions))
    return {"regions": str(len(regions)), "regions_table": file}


def write_folder(folder: Path, rows: list[Row], **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "scores.csv", rows)
    (folder / "manifest.json").write_text(json.dumps({**MANIFEST, **changes}))
    return folder


class Page(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]
