"""Whole slides: tiles of tissue at a stated resolution, one at a time."""

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recap.config import ReadingSettings
from recap.errors import InputError, require
from recap.io.case import Case, LazyImages
from recap.io.raster import MAX_PIXELS
from recap.io.slide_pixels import BOX, Slide
from recap.io.slide_tissue import colourfulness, tissue_shares
from recap.types import FloatArray, Geometry, Identity, Image

# A tile with less tissue than this is background; thin strands are worth a look.
TISSUE_SHARE = 0.10
# Tissue is looked for at about this resolution, and at no fewer pixels than these to a tile's side.
OVERVIEW_UM, OVERVIEW_CELL_PX = 8.0, 4
MAX_OVERVIEW_PIXELS = 2**25
MAX_TILES = 2**24


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
        """Where a tile lies."""
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
    """How far tiles lie apart in full-resolution pixels: whole, so that none overlap."""
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
    """How coloured the slide is, `cell` pixels to the side of a tile."""
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
