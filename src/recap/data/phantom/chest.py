"""A chest from the front, as an X-ray shows it: hazy opacities in the lungs."""

import numpy as np
from numpy.random import Generator

from recap.data.phantom.canvas import Canvas, Shape, blob, lay, place, soft_step
from recap.types import BoolArray, FloatArray


def chest(rng: Generator, size_px: int, abnormal: bool) -> tuple[FloatArray, BoolArray]:
    """Draw one chest film and the mask of its opacities."""
    canvas = Canvas(size_px)
    x0, wide = rng.normal(0, 0.02), rng.uniform(0.92, 1.06)
    body = Shape(x0, 0.35, 0.93 * wide, 1.25, waves=((0.0, 0.0), (0.0, 0.0), (0.04, 0.0)))
    pixels = lay(np.full_like(canvas.x, 0.05), canvas.inside(body, 0.05), 0.66)
    neck = canvas.inside(Shape(x0, -1.0, 0.32, 0.35), 0.05)
    pixels = lay(pixels, neck, 0.6)
    lungs = _lungs(rng, canvas, x0, wide)
    texture = 0.02 * canvas.noise(rng, 0.05) + 0.02 * canvas.noise(rng, 0.3)
    pixels = lay(pixels, lungs, rng.uniform(0.24, 0.32) + texture)
    pixels = _branches(rng, canvas, x0, lungs, pixels)
    mask = canvas.empty()
    if abnormal:
        pixels, mask = _opacities(rng, canvas, lungs, pixels)
    pixels = _bones(rng, canvas, x0, wide, canvas.inside(body, 0.05), pixels)
    pixels = _middle(rng, canvas, x0, wide, pixels)
    film = 1 + 0.05 * canvas.noise(rng, 1.2)
    return np.clip(pixels * film * rng.uniform(0.9, 1.1) + 0.01 * canvas.white(rng), 0, 1), mask


def _lungs(rng: Generator, canvas: Canvas, x0: float, wide: float) -> FloatArray:
    cover = np.zeros_like(canvas.x)
    for side in (-1, 1):
        x = x0 + side * 0.4 * wide
        lung = Shape(x, 0.0, 0.31 * wide, rng.uniform(0.72, 0.8), side * 0.09, ((0.05, 0.0),))
        dome = rng.uniform(0.42, 0.5) + (0.04 if side > 0 else 0) + 1.1 * (canvas.x - x) ** 2
        above = soft_step((dome - canvas.y) / 0.03)
        cover = np.maximum(cover, canvas.inside(lung, 0.03) * above)
    return cover


def _branches(
    rng: Generator, canvas: Canvas, x0: float, lungs: FloatArray, pixels: FloatArray
) -> FloatArray:
    """Vessels that fan out from the middle, thinner with distance."""
    for side in (-1, 1):
        for _ in range(rng.integers(9, 14)):
            angle, reach = rng.uniform(-1.3, 1.3), rng.uniform(0.08, 0.2)
            x = x0 + side * (0.16 + reach * np.cos(angle))
            y = 0.02 + 1.3 * reach * np.sin(angle)
            vessel = Shape(x, y, reach, rng.uniform(0.008, 0.02), side * angle)
            pixels = lay(pixels, 0.5 * canvas.inside(vessel, 0.015) * lungs, 0.5)
    return pixels


def _bones(
    rng: Generator, canvas: Canvas, x0: float, wide: float, body: FloatArray, pixels: FloatArray
) -> FloatArray:
    bend, step, start = rng.uniform(0.5, 0.8), rng.uniform(0.155, 0.175), rng.uniform(-0.75, -0.68)
    away = np.abs(canvas.x - x0) / wide
    cage = soft_step((0.75 - away) / 0.03) * soft_step((away - 0.1) / 0.03) * body
    for number in range(9):
        back = canvas.y - (start + step * number + bend * (away - 0.25) ** 2)
        pixels = pixels + 0.055 * np.exp(-((back / 0.028) ** 4)) * cage
        front = canvas.y - (start + 0.12 + step * number - 0.5 * (away - 0.75))
        pixels = pixels + 0.03 * np.exp(-((front / 0.03) ** 4)) * cage * soft_step(
            (away - 0.35) / 0.05
        )
    for side in (-1, 1):
        collar = Shape(x0 + side * 0.36 * wide, -0.68, 0.33, 0.035, side * -0.22)
        pixels = pixels + 0.1 * canvas.inside(collar)
    return np.asarray(pixels, dtype=np.float32)


def _middle(
    rng: Generator, canvas: Canvas, x0: float, wide: float, pixels: FloatArray
) -> FloatArray:
    """Spine, great vessels, heart and windpipe."""
    spine = np.exp(-(((canvas.x - x0) / 0.1) ** 4))
    pixels = lay(pixels, 0.75 * spine, 0.76 + 0.02 * np.sin(canvas.y * 38))
    upper = Shape(x0 + 0.03, -0.25, rng.uniform(0.15, 0.19), 0.42)
    pixels = lay(pixels, 0.85 * canvas.inside(upper, 0.04), 0.72)
    heart = Shape(x0 + 0.13, 0.3, rng.uniform(0.28, 0.36) * wide, rng.uniform(0.26, 0.31), 0.45)
    pixels = lay(pixels, 0.92 * canvas.inside(heart, 0.03), 0.74)
    return lay(pixels, 0.5 * canvas.inside(Shape(x0, -0.72, 0.04, 0.35), 0.02), 0.5)


def _opacities(
    rng: Generator, canvas: Canvas, lungs: FloatArray, pixels: FloatArray
) -> tuple[FloatArray, BoolArray]:
    mask = canvas.empty()
    room = (lungs > 0.95) & (canvas.y > -0.45) & (np.abs(canvas.x) > 0.32)
    for _ in range(rng.integers(1, 4)):
        shape = blob(rng, *place(rng, canvas, room), rng.uniform(0.14, 0.3), uneven=0.25)
        cover = canvas.inside(shape, soft=0.07) * lungs
        haze = rng.uniform(0.45, 0.75) * (1 + 0.3 * canvas.noise(rng, 0.07))
        pixels = lay(pixels, cover * np.clip(haze, 0, 1), 0.58)
        mask |= cover > 0.5
    return pixels, mask
