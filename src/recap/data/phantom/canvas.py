"""The tools that draw all phantoms: soft shapes, smooth noise, laying one over another.

Positions and radii are in half sides: the canvas spans −1..1, x to the right and y down.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image as PillowImage

from recap.types import BoolArray, FloatArray

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Shape:
    """An ellipse, possibly turned and with an uneven rim."""

    x: float
    y: float
    rx: float
    ry: float
    turn: float = 0.0
    # Amplitude and phase of the rim's waves, from two per round upwards.
    waves: tuple[tuple[float, float], ...] = ()


class Canvas:
    """A square of `size_px` and the coordinates of its pixels."""

    def __init__(self, size_px: int) -> None:
        self.size_px = size_px
        line = ((np.arange(size_px) + 0.5) / size_px * 2 - 1).astype(np.float32)
        self.y, self.x = np.meshgrid(line, line, indexing="ij")

    def depth(self, shape: Shape) -> FloatArray:
        """Compute how deep pixels lie in a shape: 1 at its centre, 0 on the rim, then negative."""
        dx, dy = self.x - shape.x, self.y - shape.y
        cos, sin = np.cos(shape.turn), np.sin(shape.turn)
        u, v = (cos * dx + sin * dy) / shape.rx, (cos * dy - sin * dx) / shape.ry
        rim = np.ones_like(u)
        if shape.waves:
            angle = np.arctan2(v, u)  # takes as long as all else
            for count, (amplitude, phase) in enumerate(shape.waves, start=2):
                rim += amplitude * np.cos(count * angle + phase)
        return np.asarray(1 - np.hypot(u, v) / rim, dtype=np.float32)

    def inside(self, shape: Shape, soft: float = 0.02) -> FloatArray:
        """Cover 0..1 of a shape whose rim is about `soft` half sides wide."""
        return soft_step(self.depth(shape) * min(shape.rx, shape.ry) / soft)

    def noise(self, rng: Generator, grain: float) -> FloatArray:
        """Smooth noise of about unit variance whose grains measure `grain` half sides."""
        cells = max(2, round(2 / grain)) + 3
        coarse = rng.standard_normal((cells, cells)).astype(np.float32)
        if cells >= self.size_px:
            return np.asarray(coarse[: self.size_px, : self.size_px])
        # The rim of an enlarged grid is flat, so one cell on each side is cut away.
        scale = self.size_px / (cells - 2)
        side = round(cells * scale)
        image = PillowImage.fromarray(coarse).resize((side, side), PillowImage.Resampling.BICUBIC)
        start = (side - self.size_px) // 2
        cut = np.array(image)[start : start + self.size_px, start : start + self.size_px]
        return np.asarray(1.5 * cut, dtype=np.float32)

    def white(self, rng: Generator) -> FloatArray:
        """Noise without correlation, unit variance."""
        return rng.standard_normal((self.size_px, self.size_px)).astype(np.float32)

    def empty(self) -> BoolArray:
        """A mask without lesions."""
        return np.zeros((self.size_px, self.size_px), dtype=bool)


def soft_step(value: Floats) -> FloatArray:
    """A step from 0 to 1 at zero, one unit wide."""
    return np.asarray(0.5 + 0.5 * np.tanh(value), dtype=np.float32)


def lay(base: Floats, cover: Floats, value: Floats | float) -> FloatArray:
    """Lay a value over the base where the cover is 1, blending in between."""
    return np.asarray(base + cover * (value - base), dtype=np.float32)


def blob(rng: Generator, x: float, y: float, radius: float, uneven: float = 0.12) -> Shape:
    """A lesion-like shape: an ellipse with a random turn, aspect and uneven rim."""
    stretch = rng.uniform(0.75, 1.3)
    waves = tuple(
        (float(rng.normal(0, uneven / (n + 1))), rng.uniform(0, 2 * np.pi)) for n in range(4)
    )
    return Shape(x, y, radius * stretch, radius / stretch, rng.uniform(0, np.pi), waves)


def place(rng: Generator, canvas: Canvas, room: BoolArray) -> tuple[float, float]:
    """Pick a point of the room, each pixel with the same chance."""
    choices = np.flatnonzero(room)
    at = int(choices[rng.integers(len(choices))])
    return float(canvas.x.flat[at]), float(canvas.y.flat[at])
