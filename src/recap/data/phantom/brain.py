"""A head in cross-section, as FLAIR shows it: bright lesions in the brain."""

import numpy as np
from numpy.random import Generator

from recap.data.phantom.canvas import Canvas, Shape, blob, lay, place, soft_step
from recap.types import BoolArray, FloatArray


def brain(rng: Generator, size_px: int, abnormal: bool) -> tuple[FloatArray, BoolArray]:
    """Draw one slice of a head and the mask of its lesions."""
    canvas = Canvas(size_px)
    turn = rng.normal(0, 0.06)
    x, y = rng.normal(0, 0.02, 2)
    rx, ry = rng.uniform(0.62, 0.7), rng.uniform(0.78, 0.87)
    head = Shape(x, y, rx, ry, turn, waves=((rng.normal(0, 0.015), 0.0),))
    inner = Shape(x, y, rx - 0.1, ry - 0.1, turn, head.waves)
    scalp = canvas.inside(head) * rng.uniform(0.35, 0.5)
    skull = canvas.inside(Shape(x, y, rx - 0.04, ry - 0.04, turn, head.waves))
    pixels = lay(scalp, skull, 0.06)
    pixels = lay(pixels, canvas.inside(inner), _tissue(rng, canvas, inner))
    pixels = lay(pixels, _ventricles(rng, canvas, inner), rng.uniform(0.1, 0.16))
    mask = canvas.empty()
    if abnormal:
        pixels, mask = _lesions(rng, canvas, inner, pixels)
    field = 1 + 0.06 * canvas.noise(rng, 1.5)
    noisy = pixels * field * rng.uniform(0.92, 1.08) + 0.012 * canvas.white(rng)
    return np.clip(noisy, 0, 1), mask


def _tissue(rng: Generator, canvas: Canvas, inner: Shape) -> FloatArray:
    """White matter, a folded grey rim, dark furrows and the midline."""
    depth = canvas.depth(inner)
    folds = canvas.noise(rng, 0.1)
    rim = soft_step((0.22 + 0.07 * folds - depth) / 0.05)
    tissue = lay(np.full_like(depth, 0.36), rim, 0.46) + 0.012 * canvas.noise(rng, 0.2)
    furrows = soft_step((np.abs(folds) * -1 + 0.12) / 0.1) * soft_step((0.24 - depth) / 0.05)
    tissue = lay(tissue, 0.7 * furrows, 0.16)
    across = (canvas.x - inner.x) + np.tan(inner.turn) * (canvas.y - inner.y)
    midline = np.exp(-((across / 0.012) ** 2)) * soft_step((np.abs(canvas.y - inner.y) - 0.3) / 0.1)
    return lay(tissue, 0.6 * midline, 0.15)


def _ventricles(rng: Generator, canvas: Canvas, inner: Shape) -> FloatArray:
    width, length = rng.uniform(0.04, 0.085), rng.uniform(0.2, 0.3)
    apart, tilt = rng.uniform(0.085, 0.12), rng.uniform(0.1, 0.3)
    cover = np.zeros_like(canvas.x)
    for side in (-1, 1):
        for up in (-1, 1):
            part = Shape(
                inner.x + side * apart,
                inner.y + up * length * 0.45,
                width * rng.uniform(0.9, 1.1),
                length * 0.6,
                inner.turn - side * up * tilt,
            )
            cover = np.maximum(cover, canvas.inside(part))
    return cover


def _lesions(
    rng: Generator, canvas: Canvas, inner: Shape, pixels: FloatArray
) -> tuple[FloatArray, BoolArray]:
    mask = canvas.empty()
    room = (canvas.depth(inner) > 0.25) & (np.abs(canvas.x - inner.x) > 0.15)
    for _ in range(rng.integers(1, 3)):
        shape = blob(rng, *place(rng, canvas, room), rng.uniform(0.08, 0.2), uneven=0.25)
        cover = canvas.inside(shape, soft=0.03) * canvas.inside(inner)
        gain = rng.uniform(0.16, 0.3) * (1 + 0.2 * canvas.noise(rng, 0.08))
        pixels = np.asarray(pixels + cover * gain, dtype=np.float32)
        mask |= cover > 0.5
    return pixels, mask
