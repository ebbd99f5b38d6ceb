"""Stained tissue under the microscope: nests of large, crowded nuclei among small round ones."""

import numpy as np
from numpy.random import Generator

from recap.data.phantom.canvas import Canvas, Shape, blob, place, soft_step
from recap.types import BoolArray, FloatArray

# How much red, green and blue a full layer of each stain takes away.
HAEMATOXYLIN = np.array([0.85, 1.05, 0.45], dtype=np.float32)
EOSIN = np.array([0.08, 0.62, 0.3], dtype=np.float32)
# Nuclei per canvas, before gaps and nests are left out.
SPARSE, CROWDED = 330, 900


def histology(rng: Generator, size_px: int, abnormal: bool) -> tuple[FloatArray, BoolArray]:
    """Draw one field of tissue in colour and the mask of its nest of crowded nuclei."""
    canvas = Canvas(size_px)
    fibres = canvas.noise(rng, 0.3) + 0.5 * canvas.noise(rng, 0.06)
    gaps = soft_step((canvas.noise(rng, 0.28) - rng.uniform(1.4, 2.2)) / 0.12)
    eosin = (0.55 + 0.12 * fibres) * (1 - gaps)
    haze = 0.1 + 0.03 * canvas.noise(rng, 0.1)
    mask = canvas.empty()
    if abnormal:
        x, y = rng.uniform(-0.35, 0.35, 2)
        shape = blob(rng, x, y, rng.uniform(0.45, 0.75), uneven=0.25)
        mask = np.asarray(canvas.depth(shape) > 0)
    blue = haze * (1 - gaps)
    blue = _nuclei(rng, canvas, blue, (gaps < 0.3) & ~mask, SPARSE, (0.022, 0.03), 0.12)
    if abnormal:
        blue = _nuclei(rng, canvas, blue, (gaps < 0.6) & mask, CROWDED, (0.03, 0.05), 0.45)
    strength = rng.uniform(0.85, 1.15, 2)
    absorbed = strength[0] * blue[..., None] * HAEMATOXYLIN + strength[1] * eosin[..., None] * EOSIN
    light = 0.96 * np.exp(-np.maximum(absorbed, 0)) + 0.012 * canvas.white(rng)[..., None]
    return np.clip(light, 0, 1).astype(np.float32), mask


def _nuclei(
    rng: Generator,
    canvas: Canvas,
    blue: FloatArray,
    room: BoolArray,
    full: int,
    radius: tuple[float, float],
    variety: float,
) -> FloatArray:
    """Strew nuclei over the room; `variety` is how much their shape and stain differ."""
    blue = blue.copy()
    for _ in range(round(full * room.mean())):
        x, y = place(rng, canvas, room)
        size = rng.uniform(*radius)
        stretch = np.exp(rng.normal(0, 0.15 + 0.4 * variety))
        shape = Shape(x, y, size * stretch, size / stretch, rng.uniform(0, np.pi))
        stain = rng.uniform(0.95, 1.1) * (1 - variety * rng.uniform(0, 0.8))
        _stamp(canvas, blue, shape, stain)
    return blue


def _stamp(canvas: Canvas, blue: FloatArray, shape: Shape, stain: float) -> None:
    """Darken one nucleus in place, touching only its own box of pixels."""
    reach = 1.4 * max(shape.rx, shape.ry)
    first, last = (
        np.clip(((np.array([shape.y, shape.x]) + d + 1) / 2 * canvas.size_px), 0, canvas.size_px)
        for d in (-reach, reach)
    )
    box = tuple(slice(int(a), int(np.ceil(b))) for a, b in zip(first, last, strict=True))
    dx, dy = canvas.x[box] - shape.x, canvas.y[box] - shape.y
    cos, sin = np.cos(shape.turn), np.sin(shape.turn)
    away = np.hypot((cos * dx + sin * dy) / shape.rx, (cos * dy - sin * dx) / shape.ry)
    cover = soft_step((1 - away) / 0.2) * (0.85 + 0.15 * np.clip(away, 0, 1))
    blue[box] = np.maximum(blue[box], stain * cover)
