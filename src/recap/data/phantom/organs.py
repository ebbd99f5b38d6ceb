"""Made-up scans of organs: an axial brain MRI, a chest X-ray and a CT slice through the liver."""

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
        pixels, mask = _brain_lesions(rng, canvas, inner, pixels)
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


def _brain_lesions(
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
        pixels, mask = _liver_lesions(rng, canvas, room, cover, pixels)
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


def _liver_lesions(
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
