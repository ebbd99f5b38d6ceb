"""A belly in cross-section, as CT shows it: dark lesions in the liver."""

import numpy as np
from numpy.random import Generator

from recap.data.phantom.canvas import Canvas, Shape, blob, lay, place
from recap.types import BoolArray, FloatArray


def liver(rng: Generator, size_px: int, abnormal: bool) -> tuple[FloatArray, BoolArray]:
    """Draw one slice of a belly and the mask of its liver lesions."""
    canvas = Canvas(size_px)
    rx, ry = rng.uniform(0.82, 0.92), rng.uniform(0.62, 0.72)
    fat = rng.uniform(0.06, 0.13)
    body = Shape(0, 0, rx, ry, rng.normal(0, 0.03), waves=((0.0, 0.0), (0.0, 0.0), (-0.03, 0.0)))
    wall = Shape(0, 0, rx - fat, ry - fat, body.turn, body.waves)
    cavity = Shape(0, -0.02, rx - fat - 0.06, ry - fat - 0.06, body.turn, body.waves)
    pixels = lay(canvas.inside(body) * 0.2, canvas.inside(wall), 0.46)
    pixels = lay(pixels, canvas.inside(cavity), 0.26 + 0.03 * canvas.noise(rng, 0.12))
    pixels = _spine(rng, canvas, ry, pixels)
    organ = _liver_shape(rng, rx, ry, fat)
    cover = canvas.inside(organ) * canvas.inside(cavity)
    pixels = _neighbours(rng, canvas, rx, fat, pixels)
    pixels = lay(pixels, cover, rng.uniform(0.56, 0.64) + 0.008 * canvas.noise(rng, 0.1))
    pixels = _vessels(rng, canvas, cover, organ, pixels)
    mask = canvas.empty()
    if abnormal:
        room = (canvas.depth(organ) > 0.2) & (cover > 0.95)
        pixels, mask = _lesions(rng, canvas, room, cover, pixels)
    return np.clip(pixels + 0.022 * canvas.white(rng), 0, 1), mask


def _liver_shape(rng: Generator, rx: float, ry: float, fat: float) -> Shape:
    waves = ((rng.uniform(0.02, 0.08), rng.normal(0, 0.4)), (rng.uniform(0.04, 0.1), 0.4))
    return Shape(
        -rx + fat + rng.uniform(0.42, 0.48),
        rng.uniform(-0.12, -0.02),
        rng.uniform(0.42, 0.5),
        ry * rng.uniform(0.62, 0.7),
        rng.normal(0, 0.12),
        waves,
    )


def _spine(rng: Generator, canvas: Canvas, ry: float, pixels: FloatArray) -> FloatArray:
    y = ry - rng.uniform(0.27, 0.31)
    pixels = lay(pixels, canvas.inside(Shape(0, y + 0.13, 0.06, 0.11)), 0.75)
    pixels = lay(pixels, canvas.inside(Shape(0, y, 0.12, 0.1)), 0.85)
    pixels = lay(pixels, canvas.inside(Shape(0, y, 0.095, 0.075)), 0.68)
    for side in (-1, 1):
        muscle = Shape(side * 0.18, y + 0.12, 0.11, 0.08, side * 0.3)
        pixels = lay(pixels, canvas.inside(muscle), 0.47)
    return lay(pixels, canvas.inside(Shape(0.07, y - 0.16, 0.05, 0.05)), rng.uniform(0.66, 0.78))


def _neighbours(
    rng: Generator, canvas: Canvas, rx: float, fat: float, pixels: FloatArray
) -> FloatArray:
    """Stomach with its air, spleen and kidneys."""
    stomach = blob(rng, rng.uniform(0.25, 0.35), -0.22, rng.uniform(0.2, 0.26), uneven=0.1)
    pixels = lay(pixels, canvas.inside(stomach), rng.uniform(0.42, 0.48))
    air = Shape(stomach.x, stomach.y - 0.08, 0.12, rng.uniform(0.03, 0.08))
    pixels = lay(pixels, canvas.inside(air), 0.0)
    spleen = Shape(rx - fat - 0.2, 0.14, 0.11, rng.uniform(0.17, 0.24), rng.normal(0.2, 0.1))
    pixels = lay(pixels, canvas.inside(spleen), rng.uniform(0.56, 0.62))
    if rng.random() < 0.6:
        for side in (-1, 1):
            x, y = side * rng.uniform(0.34, 0.38), rng.uniform(0.3, 0.36)
            pixels = lay(pixels, canvas.inside(Shape(x, y, 0.11, 0.085, side * 0.5)), 0.66)
            pixels = lay(pixels, canvas.inside(Shape(x - side * 0.03, y, 0.04, 0.03)), 0.4)
    return pixels


def _vessels(
    rng: Generator, canvas: Canvas, cover: FloatArray, organ: Shape, pixels: FloatArray
) -> FloatArray:
    for _ in range(rng.integers(4, 9)):
        x, y = organ.x + rng.normal(0.08, 0.13), organ.y + rng.normal(0, 0.15)
        long, thin = rng.uniform(0.03, 0.12), rng.uniform(0.012, 0.022)
        vessel = canvas.inside(Shape(x, y, long, thin, rng.uniform(0, np.pi)), soft=0.012)
        pixels = lay(pixels, vessel * cover, np.asarray(pixels + 0.07))
    return pixels


def _lesions(
    rng: Generator, canvas: Canvas, room: BoolArray, cover: FloatArray, pixels: FloatArray
) -> tuple[FloatArray, BoolArray]:
    mask = canvas.empty()
    for _ in range(rng.integers(1, 4)):
        shape = blob(rng, *place(rng, canvas, room), rng.uniform(0.05, 0.15))
        lesion = canvas.inside(shape, soft=0.025) * cover
        drop = rng.uniform(0.09, 0.18) * (1 + 0.15 * canvas.noise(rng, 0.06))
        pixels = np.asarray(pixels - lesion * drop, dtype=np.float32)
        mask |= lesion > 0.5
    return pixels, mask
