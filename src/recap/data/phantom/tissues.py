"""Made-up pictures of tissue: a stained section and a retina in OCT."""

import numpy as np
from numpy.random import Generator

from recap.data.phantom.canvas import Canvas, Shape, blob, place, soft_step
from recap.types import BoolArray, FloatArray

# How much red, green and blue a full layer of each stain takes away.
HAEMATOXYLIN = np.array([0.85, 1.05, 0.45], dtype=np.float32)
EOSIN = np.array([0.08, 0.62, 0.3], dtype=np.float32)
# Nuclei per canvas, before gaps and nests are left out.
SPARSE, CROWDED = 330, 900
# Brightness of each layer from the vitreous down, and where it ends as a part of the thickness.
LAYERS = ((0.62, 0.14), (0.42, 0.36), (0.24, 0.5), (0.4, 0.58), (0.17, 0.8), (0.55, 0.87))
PIGMENT, VITREOUS = 0.85, 0.04


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


def resc(rng: Generator, size_px: int, abnormal: bool) -> tuple[FloatArray, BoolArray]:
    """Draw a grainy scan and the mask of the fluid in or under its retina."""
    return _scan(rng, size_px, "fluid" if abnormal else "", grain=0.42, gain=0.75)


def oct2017(rng: Generator, size_px: int, abnormal: bool) -> tuple[FloatArray, BoolArray]:
    """Draw a clearer scan and the mask of its fluid or of the bumps of its pigment layer."""
    finding = str(rng.choice(["fluid", "bumps"])) if abnormal else ""
    return _scan(rng, size_px, finding, grain=0.28, gain=1.0)


def _scan(
    rng: Generator, size_px: int, finding: str, grain: float, gain: float
) -> tuple[FloatArray, BoolArray]:
    canvas = Canvas(size_px)
    x = canvas.x[0]
    floor = rng.uniform(0.05, 0.3) + rng.normal(0, 0.08) * x + rng.uniform(0.0, 0.18) * x**2
    thick = rng.uniform(0.42, 0.54) + rng.normal(0, 0.03) * x
    pit_x, pit_width = rng.normal(0, 0.12), rng.uniform(0.16, 0.24)
    thick = thick * (1 - rng.uniform(0.3, 0.5) * np.exp(-(((x - pit_x) / pit_width) ** 2)))
    lift = np.zeros_like(x)
    if finding == "bumps":
        lift = _bumps(rng, x)
    elif finding == "fluid" and rng.random() < 0.4:
        lift = _dome(rng, x, pit_x)
    pigment = floor - (lift if finding == "bumps" else 0)
    bottom, top = floor - lift, floor - lift - thick
    pixels = _layers(rng, canvas, top, bottom, pigment)
    mask = (canvas.y > bottom) & (canvas.y < floor) & (lift > 0.015)
    if finding == "fluid":
        pixels = np.where(mask & (canvas.y < pigment), 0.06, pixels)
        if not lift.any():
            pixels, mask = _cysts(rng, canvas, top, bottom, pit_x, pixels)
    shade = 1 + 0.12 * canvas.noise(rng, 0.7)[:1]
    speckle = 1 + grain * (0.6 * canvas.white(rng) + 0.5 * canvas.noise(rng, 0.025))
    noisy = gain * pixels * shade * speckle + 0.02 * np.abs(canvas.white(rng))
    return np.clip(noisy, 0, 1).astype(np.float32), mask


def _layers(
    rng: Generator, canvas: Canvas, top: FloatArray, bottom: FloatArray, pigment: FloatArray
) -> FloatArray:
    """Stack the layers between two lines, then the pigment layer and the vessels below it."""
    wobble = 0.006 * canvas.noise(rng, 0.25)[0]
    at = (canvas.y - top - wobble) / (bottom - top)
    pixels = np.full_like(canvas.y, VITREOUS)
    edges = (0.0, *(end * rng.uniform(0.97, 1.03) for _, end in LAYERS))
    levels = [level * rng.uniform(0.9, 1.1) for level, _ in LAYERS]
    for edge, level in zip(edges, levels, strict=False):
        pixels += soft_step((at - edge) / 0.02) * (level - pixels)
    below = canvas.y - pigment
    vessels = 0.42 + 0.1 * canvas.noise(rng, 0.08)
    fading = vessels * np.exp(-np.maximum(below, 0) / rng.uniform(0.22, 0.38))
    pixels += soft_step((below + 0.01) / 0.008) * (fading - pixels)
    line = np.exp(-(((below + 0.012) / 0.02) ** 2))
    return np.asarray(pixels + line * (PIGMENT - pixels), dtype=np.float32)


def _bumps(rng: Generator, x: FloatArray) -> FloatArray:
    lift = np.zeros_like(x)
    for _ in range(rng.integers(2, 6)):
        at, width = rng.uniform(-0.7, 0.7), rng.uniform(0.05, 0.13)
        lift = np.maximum(lift, rng.uniform(0.05, 0.12) * np.exp(-(((x - at) / width) ** 2)))
    return lift


def _dome(rng: Generator, x: FloatArray, pit_x: float) -> FloatArray:
    at, width = pit_x + rng.normal(0, 0.15), rng.uniform(0.2, 0.4)
    height = rng.uniform(0.08, 0.18)
    return np.asarray(height * np.clip(1 - ((x - at) / width) ** 2, 0, None), dtype=np.float32)


def _cysts(
    rng: Generator,
    canvas: Canvas,
    top: FloatArray,
    bottom: FloatArray,
    pit_x: float,
    pixels: FloatArray,
) -> tuple[FloatArray, BoolArray]:
    mask = canvas.empty()
    middle = int((pit_x + rng.normal(0, 0.2) + 1) / 2 * canvas.size_px)
    for _ in range(rng.integers(2, 6)):
        column = int(np.clip(middle + rng.normal(0, 0.06) * canvas.size_px, 0, canvas.size_px - 1))
        thick = float(bottom[column] - top[column])
        y = float(top[column]) + thick * rng.uniform(0.35, 0.7)
        shape = blob(rng, float(canvas.x[0, column]), y, thick * rng.uniform(0.13, 0.26))
        cover = canvas.inside(shape, soft=0.01)
        pixels = np.asarray(pixels + cover * (0.06 - pixels), dtype=np.float32)
        mask |= cover > 0.5
    return pixels, mask
