"""A whole result as one zip, made while it is being sent."""

import csv
import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

from recap.report.score_page_table import cell_text
from recap.results.table import columns_of, number_text
from recap.scoring.bundle_folder import Bundle
from recap.service.results import MAPS, RESULT, VOLUME, Result
from recap.types import Decision, DomainCheck

Content = bytes | Path | Callable[[], AbstractContextManager[BufferedReader]]
"""What a zip holds under a name: bytes, a file, or what opens one when its turn comes."""
_BLOCK = 2**18
# Those of `recap score` that hold without its folders, in its order.
_COLUMNS = [
    *("case", "status", "kind", "images", "score", "score_prototype", "score_memory", "p_value"),
    *("decision", "probability", "in_domain", "regions", "rule", "height", "width", "error"),
]


class _Pipe(io.RawIOBase):
    """What a zip writes, to be taken away block by block."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, block: Any) -> int:
        self._blocks.append(bytes(block))
        return len(block)

    def take(self) -> bytes:
        taken = b"".join(self._blocks)
        self._blocks.clear()
        return taken


def zip_files(files: Iterable[tuple[str, Content]]) -> Iterator[bytes]:
    """A zip of files and bytes under the given names, block by block."""
    pipe = _Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            info = zipfile.ZipInfo(name)  # without a date: the same result is the same bytes
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as member:
                for block in _blocks(content):
                    member.write(block)
                    if taken := pipe.take():
                        yield taken
    yield pipe.take()


def zip_bundle(bundle: Bundle) -> Iterator[bytes]:
    """A zip of all files of a bundle."""
    return zip_files([(name, partial(bundle.open, name)) for name in bundle.files()])


def zip_result(result: Result) -> Iterator[bytes]:
    """Table, JSON, maps, and an overlay of each case's highest image."""
    return zip_files(_files(result, result.read()))


def _files(result: Result, content: dict[str, Any]) -> Iterator[tuple[str, Content]]:
    yield RESULT, result.folder / RESULT
    yield "scores.csv", scores_csv(content).encode()
    for number, case in enumerate(content["cases"]):
        if case["status"] != "ok":
            continue
        name = f"{number:05d}-{file_name(case['name'])}"
        volume = result.file(number, VOLUME)
        if volume.is_file():
            yield f"maps/{name}.map.nii.gz", volume
        else:
            yield f"maps/{name}.npy", result.file(number, MAPS)
        low, high = case["scale"]
        picture = result.overlay_png(number, case["highest"], (low, high))
        yield f"overlays/{name}.png", picture or b""


def scores_csv(content: dict[str, Any]) -> str:
    """One line per case, with the words and numbers of `recap score`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS)
    writer.writeheader()
    for case in content["cases"]:
        known = _measured(case) if case["status"] == "ok" else {}
        given = {"case": cell_text(case["name"]), "status": case["status"], "error": case["error"]}
        writer.writerow({**known, **given})
    return text.getvalue()


def _measured(case: dict[str, Any]) -> dict[str, str]:
    scores = ("score", "score_prototype", "score_memory")
    height, width = case.get("source_size_hw") or case["size_hw"]
    return {
        **{name: number_text(case[name]) for name in scores},
        **_decided(case),
        "kind": case["kind"],
        "images": str(case.get("tiles") or case["images"]),
        "regions": "" if case["level"] is None else str(len(case["regions"])),
        "height": str(height),
        "width": str(width),
    }


def _decided(case: dict[str, Any]) -> dict[str, str]:
    decision, domain = case["decision"], case["domain"]
    return columns_of(
        None if decision is None else Decision(**decision),
        None if domain is None else DomainCheck(**domain),
        case["undecided"],
    )


def file_name(name: str) -> str:
    """A client's name for a case, as a file name that does no harm anywhere."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[-80:] or "case"


def _blocks(content: Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") if isinstance(content, Path) else content() as file:
        while block := file.read(_BLOCK):
            yield block
