"""Whole slides: tiles of tissue at a stated resolution, one at a time."""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recap.config import ReadingSettings
from recap.errors import InputError, require
from recap.io.case import Case, LazyImages
from recap.io.raster import MAX_PIXELS
from recap.io.slide_pixels import BOX, Slide
from recap.types import FloatArray, Geometry, Identity, Image

# A tile with less tissue than this is background; thin strands are worth a look.
TISSUE_SHARE = 0.10
# Tissue is looked for at about this resolution, and at no fewer pixels than these to a tile's side.
OVERVIEW_UM, OVERVIEW_CELL_PX = 8.0, 4
MAX_OVERVIEW_PIXELS = 2**25
MAX_TILES = 2**24
# Otsu's threshold is kept in these bounds: a slide full of tissue has no glass to tell apart, and
# on an empty one there is nothing but the tint of the glass and noise.
COLOUR_BOUNDS = (10, 30)


@dataclass(frozen=True, eq=False)
class TileGrid:
    """Equal tiles side by side, row by row, and the share of tissue in each."""

    tile_px: int
    um_per_px: float
    source_px_per_px: float
    pitch_px: int
    """From one tile to the next in full-resolution pixels: whole, so that no tiles overlap."""
    shares: FloatArray

    def geometry(self, row: int, column: int) -> Geometry:
        """Compute where a tile lies."""
        return Geometry(
            spacing_mm=(self.um_per_px / 1000, self.um_per_px / 1000),
            origin_px=(row * self.pitch_px, column * self.pitch_px),
            source_px_per_px=self.source_px_per_px,
        )


def is_slide(path: Path) -> bool:
    """Tell whether a file is a slide rather than a picture: a scanner's format, or a pyramid."""
    openslide = require("openslide", "slides")
    vendor = openslide.OpenSlide.detect_format(str(path))
    if vendor != "generic-tiff":
        return vendor is not None
    try:
        slide = Slide(path)
    except InputError:
        return _has_pages(path)
    return len(slide.levels) > 1 or math.prod(slide.size_hw) > MAX_PIXELS


def open_slide(path: Path, reading: ReadingSettings) -> Case:
    """Open a slide as its tiles of tissue, row by row; a tile is read when it is asked for."""
    slide = Slide(path)
    grid = lay_tiles(slide, reading.slide_um_per_px, reading.slide_tile_px)
    places = np.argwhere(grid.shares >= TISSUE_SHARE)
    if not len(places):
        raise InputError(
            f"{path}: no tissue was found on this slide: nothing on it is stained. "
            "Check the thumbnail, or score the part you need as a picture."
        )

    def read(number: int) -> Image:
        row, column = places[number].tolist()
        return read_tile(slide, grid.geometry(row, column), grid.tile_px, f"{path}[{number}]")

    return Case("slide", str(path), LazyImages(len(places), read), size_hw=slide.size_hw)


def lay_tiles(slide: Slide, um_per_px: float, tile_px: int) -> TileGrid:
    """Cover a slide with tiles of a resolution, and find out how much tissue each has."""
    own = slide.um_per_px()
    step = um_per_px / own
    if step < 0.5:
        raise InputError(
            f"{slide.path}: scanned at {own:g} µm per pixel, which is too coarse for tiles at "
            f"{um_per_px:g}. Set reading.slide_um_per_px to {own:g} or more."
        )
    pitch = pitch_px(tile_px, step)
    rows, columns = (-(-side // pitch) for side in slide.size_hw)
    if rows * columns > MAX_TILES:
        raise InputError(
            f"{slide.path}: {rows * columns} tiles are too many. "
            "Set reading.slide_um_per_px or reading.slide_tile_px higher."
        )
    cell = max(OVERVIEW_CELL_PX, round(tile_px * um_per_px / OVERVIEW_UM))
    cell = max(1, min(cell, math.isqrt(MAX_OVERVIEW_PIXELS // (rows * columns))))
    colour = _overview(slide, pitch, cell, (rows, columns))
    height, width = (max(1, side * cell // pitch) for side in slide.size_hw)
    shares = tissue_shares(colour, cell, (height, width))
    return TileGrid(tile_px, um_per_px, step, pitch, shares)


def pitch_px(tile_px: int, source_px_per_px: float) -> int:
    """Compute the distance between tiles in full-resolution pixels: whole, so that none overlap."""
    # Without the small allowance a rounded quotient would move every tile by one pixel.
    return math.ceil(tile_px * source_px_per_px - 1e-6)


def read_tile(slide: Slide, geometry: Geometry, tile_px: int, source: str) -> Image:
    """Read one square tile."""
    pixels = slide.read(geometry.origin_px, geometry.source_px_per_px, (tile_px, tile_px))
    unit = pixels.astype(np.float32) / np.float32(255)
    place = Identity(instance="{},{}".format(*geometry.origin_px))
    return Image(unit, source, geometry, place)


def thumbnail(path: Path, max_px: int) -> Image:
    """The whole slide as one image whose longer side has at most `max_px` pixels."""
    slide = Slide(path)
    step = max(1.0, max(slide.size_hw) / max_px)
    size_hw = tuple(max(1, round(side / step)) for side in slide.size_hw)
    pixels = slide.read((0, 0), step, (size_hw[0], size_hw[1]), BOX)
    geometry = Geometry(source_px_per_px=step)
    return Image(pixels.astype(np.float32) / np.float32(255), str(path), geometry)


def _overview(slide: Slide, pitch: int, cell: int, grid_hw: tuple[int, int]) -> NDArray[np.uint8]:
    """Measure how coloured the slide is, `cell` pixels to the side of a tile."""
    rows, columns = grid_hw
    step = pitch / cell
    # The effort of the whole is checked before the first part is read.
    slide.check_effort(step, (rows * cell, columns * cell))
    colour = np.zeros((rows * cell, columns * cell), dtype=np.uint8)
    together = max(1, 512 // cell)
    for row in range(0, rows, together):
        part = colour[row * cell : (row + together) * cell]
        part[...] = colourfulness(
            slide.read((row * pitch, 0), step, (part.shape[0], part.shape[1]), BOX)
        )
    return colour


def _has_pages(path: Path) -> bool:
    """Tell whether a TIFF's first directory names a second one, however damaged the rest is."""
    with path.open("rb") as stream:
        head = stream.read(16)
        order, big = "<" if head[:2] == b"II" else ">", 43 in head[2:4]
        place, count, entry = ("Q", "Q", 20) if big else ("I", "H", 12)
        try:
            (first,) = struct.unpack_from(order + place, head, 8 if big else 4)
            stream.seek(first)
            (entries,) = struct.unpack(order + count, stream.read(struct.calcsize(count)))
            stream.seek(entries * entry, 1)
            (second,) = struct.unpack(order + place, stream.read(struct.calcsize(place)))
        except (struct.error, OSError, OverflowError):
            return False
    return bool(second)


def colourfulness(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Measure how coloured each pixel is, 0 for grey: (..., 3) to (...)."""
    return np.asarray(rgb.max(axis=-1) - rgb.min(axis=-1))


def otsu(values: NDArray[np.uint8]) -> int | None:
    """The value that splits best, as the largest of the lower class; none if all are equal."""
    counts = np.bincount(values.ravel(), minlength=256).astype(np.float64)
    below = counts.cumsum()[:-1]
    above = counts.sum() - below
    first = (counts * np.arange(256)).cumsum()
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = first[:-1] / below - (first[-1] - first[:-1]) / above
    between = np.where((below > 0) & (above > 0), below * above * gap**2, -1.0)
    if between.max() <= 0:
        return None
    # Between two far classes every value splits equally well: the middle one is the safest.
    best = np.flatnonzero(between >= between.max() * (1 - 1e-12))
    return int(best[(len(best) - 1) // 2])


def tissue_shares(colour: NDArray[np.uint8], cell_px: int, slide_hw: tuple[int, int]) -> FloatArray:
    """The share of tissue in every square cell of an overview; zeros where there is none at all.

    Beyond `slide_hw` the overview shows nothing of the slide.
    """
    rows, columns = (side // cell_px for side in colour.shape)
    threshold = otsu(colour[: slide_hw[0], : slide_hw[1]])
    if threshold is None:
        return np.zeros((rows, columns), dtype=np.float32)
    tissue: NDArray[Any] = colour > np.clip(threshold, *COLOUR_BOUNDS)
    cells = tissue.reshape(rows, cell_px, columns, cell_px)
    return np.asarray(cells.mean(axis=(1, 3), dtype=np.float32))
