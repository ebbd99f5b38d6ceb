"""The result of a job on disk: result.json, and for each case its images and maps as arrays.

    result.json
    cases/00000/images.npy      uint8 (N, H, W) or (N, H, W, 3), as shown
    cases/00000/maps.npy        float32 (N, H, W)
    cases/00000/map.nii.gz      a volume's map on its source's own grid

Arrays are opened as maps of the file, so that one slice costs one slice.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from recap.config import ReadingSettings
from recap.io import Case
from recap.report.overlay import encode_png, overlay, slide_picture
from recap.types import FloatArray, Image, Prediction, Region

RESULT, IMAGES, MAPS, VOLUME = "result.json", "images.npy", "maps.npy", "map.nii.gz"
SHOWN_IN_SHORT = 100


def reading_of_result(content: dict[str, Any]) -> ReadingSettings:
    """Tell how the files of a result were read."""
    return ReadingSettings(**content["reading"])


def case_folder(result: Path, number: int) -> Path:
    """Name the folder of a case's arrays."""
    return result / "cases" / f"{number:05d}"


def write_case(folder: Path, case: Case, prediction: Prediction) -> dict[str, Any]:
    """Write a case's arrays; returns what is shown, and at which size."""
    folder.mkdir(parents=True)
    if case.grid is not None:
        from recap.io.nifti import write_map_volume

        write_map_volume(folder / VOLUME, prediction.map, case.grid)
    if case.kind == "slide":
        return _write_slide(folder, case, prediction)
    maps = prediction.map if prediction.map.ndim == 3 else prediction.map[None]
    _save(folder / MAPS, maps.shape, np.float32, maps)
    first = case.images[0]
    shape = (len(case.images), *first.pixels.shape)
    images = chain([first], (case.images[number] for number in range(1, len(case.images))))
    shown = (_in_channels(_to_bytes(image), first.pixels.ndim) for image in images)
    _save(folder / IMAGES, shape, np.uint8, shown)
    spacing = first.geometry.spacing_mm
    return {"images": len(case.images), "size_hw": list(first.size_hw), "spacing_mm": spacing}


def _save(path: Path, shape: tuple[int, ...], dtype: Any, blocks: Iterable[Any]) -> None:
    """Write an array of blocks, so that a full disk is an error that says so.

    `np.save` forgets the error's number, and on a mapped file the disk ends the whole process.
    """
    kind = np.dtype(dtype)
    with path.open("xb") as file:
        header = {"descr": kind.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            if block.shape != shape[1:]:
                raise ValueError(f"a block of {block.shape} in an array of {shape}")
            file.write(np.ascontiguousarray(block, kind).data)


def _write_slide(folder: Path, case: Case, prediction: Prediction) -> dict[str, Any]:
    small, map = slide_picture(case, prediction.map, prediction.source_px_per_px)
    _save(folder / IMAGES, (1, *small.pixels.shape), np.uint8, [_to_bytes(small)])
    _save(folder / MAPS, (1, *map.shape), np.float32, [map])
    source = case.size_hw or small.size_hw
    return {
        "images": 1,
        "tiles": len(case.images),
        "size_hw": list(small.size_hw),
        "source_size_hw": list(source),
        "spacing_mm": None,
    }


def shown_regions(regions: list[Region], shown: dict[str, Any]) -> list[dict[str, Any]]:
    """Regions in the pixels of what is shown, which is smaller than the source for slides."""
    source = shown.get("source_size_hw")
    if source is None:
        return [asdict(region) for region in regions]
    down, across = (small / large for small, large in zip(shown["size_hw"], source, strict=True))
    return [asdict(_scaled(region, across, down)) for region in regions]


def _scaled(region: Region, across: float, down: float) -> Region:
    left, top, right, bottom = region.box_xyxy_px
    box = (left * across, top * down, right * across, bottom * down)
    peak = (int(region.peak_xy_px[0] * across), int(region.peak_xy_px[1] * down))
    return replace(
        region,
        box_xyxy_px=(int(box[0]), int(box[1]), int(np.ceil(box[2])), int(np.ceil(box[3]))),
        centroid_xy_px=(region.centroid_xy_px[0] * across, region.centroid_xy_px[1] * down),
        peak_xy_px=peak,
        area_px=round(region.area_px * across * down),
    )


def summary_of(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum up the cases of a result for the list of jobs."""
    return {
        "count": len(records),
        "failed": sum(record["status"] != "ok" for record in records),
        "images": sum(record.get("images", 0) for record in records),
        "cases": [_in_short(record) for record in records[:SHOWN_IN_SHORT]],
    }


def _in_short(record: dict[str, Any]) -> dict[str, Any]:
    decision, domain = record.get("decision") or {}, record.get("domain") or {}
    return {
        **{key: record.get(key) for key in ("id", "name", "status", "score")},
        # One without the other misleads: outside the domain a case is neither.
        "abnormal": decision.get("abnormal"),
        "in_domain": domain.get("in_domain"),
    }


def _to_bytes(image: Image) -> NDArray[np.uint8]:
    return (np.clip(image.pixels, 0.0, 1.0) * 255).round().astype(np.uint8)


def _in_channels(pixels: NDArray[np.uint8], dimensions: int) -> NDArray[Any]:
    """Grey and colour frames may be mixed in one clip; the first says what is kept."""
    if pixels.ndim == dimensions:
        return pixels
    return np.repeat(pixels[..., None], 3, 2) if dimensions == 3 else pixels.mean(2).round()


@dataclass(frozen=True)
class Result:
    """A result that is whole."""

    folder: Path

    def read(self) -> dict[str, Any]:
        """Read all of result.json."""
        return json.loads((self.folder / RESULT).read_text(encoding="utf-8"))

    def file(self, number: int, name: str) -> Path:
        """Name a file of a case."""
        return case_folder(self.folder, number) / name

    def pixels(self, case: int, number: int) -> NDArray[np.uint8] | None:
        """Read an image as it is shown; None if there is none of that number."""
        return _one(self.file(case, IMAGES), number)

    def map(self, case: int, number: int) -> FloatArray | None:
        """Read an image's map."""
        return _one(self.file(case, MAPS), number)

    def image_png(self, case: int, number: int) -> bytes | None:
        """Draw an image as it is shown."""
        pixels = self.pixels(case, number)
        return None if pixels is None else _png(pixels)

    def map_png(self, case: int, number: int, scale: tuple[float, float]) -> bytes | None:
        """Draw a map in grey: black up to the scale's start, white from its end."""
        map = self.map(case, number)
        if map is None:
            return None
        low, high = scale
        grey = np.clip((np.nan_to_num(map) - low) / (high - low), 0.0, 1.0) * 255
        return _png(grey.round().astype(np.uint8))

    def overlay_png(self, case: int, number: int, scale: tuple[float, float]) -> bytes | None:
        """Draw the map's colours on the image."""
        pixels, map = self.pixels(case, number), self.map(case, number)
        if pixels is None or map is None:
            return None
        image = Image(pixels.astype(np.float32) / np.float32(255), "result")
        return encode_png(overlay(image, np.nan_to_num(map), scale), quickly=True)


def _png(pixels: NDArray[np.uint8]) -> bytes:
    return encode_png(Pillow.fromarray(pixels), quickly=True)


def _one(path: Path, number: int) -> Any:
    if not path.is_file():
        return None
    stored = np.load(path, mmap_mode="r", allow_pickle=False)
    return np.array(stored[number]) if 0 <= number < len(stored) else None
