"""Pixels of a whole slide: any part at any resolution, read through openslide in bounded memory.

Positions are (row, column) in pixels of the full-resolution slide. What no scanner saw is white.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage

from recap.errors import InputError, require
from recap.io.decoding import BUDGET, not_there

# Stored tiles and pixels to read at once: a header may declare anything.
MAX_STORED_TILE_PIXELS = 2**26
MAX_READ_PIXELS = 2**30
BLOCK_PX = 2048
MAX_SHRINK = 1024
# Outside this range it is a printer's resolution, not a microscope's.
UM_PER_PX_RANGE = (0.02, 20.0)
UM_AT_1X = 10.0

BOX, BICUBIC = PillowImage.Resampling.BOX, PillowImage.Resampling.BICUBIC
_SUPPORT = {BOX: 0.5, BICUBIC: 2.0}


@dataclass(frozen=True)
class Level:
    """One stored resolution: full-resolution pixels to one of its own, down and across."""

    number: int
    size_hw: tuple[int, int]
    step_hw: tuple[float, float]
    nominal: float
    """What openslide takes it for; it reckons with one number for both directions."""
    tile_px: int = 0
    """Pixels of one of its stored tiles; 0 where the file does not say."""


class Slide:
    """An open slide: any part of it at any resolution, within bounded memory."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._openslide = require("openslide", "slides")
        self._handle: Any = None
        handle = self._open()
        width, height = handle.dimensions
        self.size_hw: tuple[int, int] = (height, width)
        self.properties: Mapping[str, str] = dict(handle.properties)
        self.levels = [self._level(handle, number) for number in range(handle.level_count)]

    def um_per_px(self) -> float:
        """Micrometres of a full-resolution pixel, as the file says or by its objective."""
        seen = [self._number(f"openslide.mpp-{axis}") for axis in "xy"]
        power = self._number("openslide.objective-power")
        low, high = UM_PER_PX_RANGE
        if all(low <= value <= high for value in seen):
            if max(seen) > 1.1 * min(seen):
                raise InputError(
                    f"{self.path}: its pixels are not square ({seen[0]:g} by {seen[1]:g} µm). "
                    "Convert the slide to square pixels."
                )
            return sum(seen) / 2
        if low <= UM_AT_1X / (power or math.inf) <= high:
            return UM_AT_1X / power
        said = f"says {seen[0]:g} by {seen[1]:g} µm" if any(seen) else "does not say how large"
        raise InputError(
            f"{self.path}: the slide {said} a pixel is, so it cannot be cut at a known scale. "
            "Convert it with the resolution set, for example with `vips tiffsave --tile --pyramid "
            "--xres 4000 --yres 4000` (pixels per mm; 4000 is 0.25 µm per pixel)."
        )

    def read(
        self,
        origin_px: tuple[int, int],
        step: float,
        size_hw: tuple[int, int],
        method: PillowImage.Resampling = BICUBIC,
    ) -> NDArray[np.uint8]:
        """RGB (H, W, 3) from an origin on, `step` full-resolution pixels to each of its own."""
        level = self._level_for(step)
        self.check_effort(step, size_hw)
        side = max(1, int(BLOCK_PX / max(1.0, step / min(level.step_hw))))
        # The part in bytes and floats, a block while it is resized, a stored tile.
        area = math.prod(size_hw)
        block = min(area, BLOCK_PX**2) + BLOCK_PX
        with BUDGET.room(area * 15 + block * 16 + level.tile_px * 4, str(self.path)):
            out = np.full((*size_hw, 3), 255, dtype=np.uint8)
            for top in range(0, size_hw[0], side):
                for left in range(0, size_hw[1], side):
                    part = out[top : top + side, left : left + side]
                    start = (origin_px[0] + top * step, origin_px[1] + left * step)
                    part[...] = self._read_block(level, start, step, part.shape[:2], method)
            return out

    def _read_block(
        self,
        level: Level,
        start: tuple[float, float],
        step: float,
        size_hw: tuple[int, ...],
        method: PillowImage.Resampling,
    ) -> Any:
        low = [place / stride for place, stride in zip(start, level.step_hw, strict=True)]
        shrink = [step / stride for stride in level.step_hw]
        high = [low[axis] + size_hw[axis] * shrink[axis] for axis in (0, 1)]
        if any(low[axis] >= level.size_hw[axis] for axis in (0, 1)):
            return 255
        margin = [math.ceil(_SUPPORT[method] * max(1.0, factor)) + 1 for factor in shrink]
        first = [math.floor(low[axis]) - margin[axis] for axis in (0, 1)]
        last = [math.ceil(high[axis]) + margin[axis] for axis in (0, 1)]
        # Openslide takes whole full-resolution pixels, so that reading may start between two.
        place = [round(start * level.nominal) for start in first]
        region = self._region(level, place, [last[axis] - first[axis] for axis in (0, 1)])
        shift = [start / level.nominal for start in place]
        box = (low[1] - shift[1], low[0] - shift[0], high[1] - shift[1], high[0] - shift[0])
        return np.asarray(region.resize((size_hw[1], size_hw[0]), method, box))

    def _region(self, level: Level, place: list[int], size_hw: list[int]) -> PillowImage.Image:
        """Stored pixels from a full-resolution place on, over white."""
        size = (size_hw[1], size_hw[0])
        try:
            seen = self._open().read_region((place[1], place[0]), level.number, size)
        except self._openslide.OpenSlideError as error:
            # A handle that met damage refuses all later reads, even of whole parts.
            self._handle = None
            raise InputError(_damaged(self.path, error)) from error
        white = PillowImage.new("RGBA", size, (255, 255, 255, 255))
        return PillowImage.alpha_composite(white, seen).convert("RGB")

    def _open(self) -> Any:
        if self._handle is None:
            self._handle = _opened(self._openslide, self.path)
        return self._handle

    def _level(self, handle: Any, number: int) -> Level:
        width, height = handle.level_dimensions[number]
        stored = [self._number(f"openslide.level[{number}].tile-{s}") for s in ("width", "height")]
        if math.prod(stored) > MAX_STORED_TILE_PIXELS:
            raise InputError(
                f"{self.path}: its stored tiles have {stored[0]:.0f}x{stored[1]:.0f} pixels. "
                "Convert the slide to smaller tiles, such as 512x512."
            )
        steps = [full / side for full, side in zip(self.size_hw, (height, width), strict=True)]
        whole = max(1, round(sum(steps) / 2))
        # Sides are rounded when a slide is shrunk; the shrinking itself is by a whole number.
        if all(
            side in (full // whole, -(-full // whole))
            for full, side in zip(self.size_hw, (height, width), strict=True)
        ):
            steps = [float(whole), float(whole)]
        return Level(
            number,
            (height, width),
            (steps[0], steps[1]),
            handle.level_downsamples[number],
            int(math.prod(stored)),
        )

    def _level_for(self, step: float) -> Level:
        """The coarsest level that is no coarser than asked for, or else the finest."""
        fine = [level for level in self.levels if max(level.step_hw) <= step * 1.001]
        return max(fine, key=lambda level: level.step_hw) if fine else self.levels[0]

    def check_effort(self, step: float, size_hw: tuple[int, int]) -> None:
        """Refuse what would take forever: the slide lacks a level near this step."""
        shrink = step / min(self._level_for(step).step_hw)
        if shrink > MAX_SHRINK or math.prod(size_hw) * shrink**2 > MAX_READ_PIXELS:
            raise InputError(
                f"{self.path}: the slide has no stored level that is coarse enough (its coarsest "
                f"has {self.levels[-1].size_hw[1]}x{self.levels[-1].size_hw[0]} pixels). "
                "Convert it to a pyramid, for example with `vips tiffsave --tile --pyramid`."
            )

    def _number(self, name: str) -> float:
        try:
            value = float(self.properties.get(name, "0"))
        except ValueError:
            return 0.0
        return value if math.isfinite(value) else 0.0


def _opened(openslide: Any, path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path}: {not_there(path)}")
    try:
        return openslide.OpenSlide(str(path))
    except openslide.OpenSlideUnsupportedFormatError as error:
        raise InputError(
            f"{path}: not a slide that openslide can read. Convert it to a pyramidal TIFF, "
            "for example with `vips tiffsave --tile --pyramid`."
        ) from error
    except openslide.OpenSlideError as error:
        raise InputError(_damaged(path, error)) from error


def _damaged(path: Path, error: Exception) -> str:
    reason = " ".join(str(error).replace(str(path), path.name).split())
    return f"{path}: the slide is damaged or incomplete ({reason}). Copy or export it again."
