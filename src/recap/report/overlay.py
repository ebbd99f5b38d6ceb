"""Heat maps over images, on one fixed scale.

A map is never stretched to its own minimum and maximum: a healthy image would glow as red as a
sick one. `scale` is (low, high), the same for every image of a detector: up to `low` the image
stays as it is, from there opacity and colour grow in step up to `high`.
"""

import base64
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from recap._files import write_atomic
from recap.errors import InputError, SettingsError
from recap.io import Case
from recap.types import BoolArray, FloatArray, Image, Prediction

RGBArray = NDArray[np.uint8]

MAX_OPACITY = 0.8
_BAND_PX = 2**20
SLIDE_PX = 1600
"""The longer side of the picture of a slide."""
OUTLINE_COLOUR = (0, 229, 255)
# Equal steps of lightness (CIE L* 2 to 91) from black over purple and orange to yellow: the order
# survives colour blindness and a grey printer.
_ANCHORS = (
    (10, 6, 24),
    (50, 18, 92),
    (110, 28, 110),
    (170, 40, 90),
    (216, 72, 52),
    (244, 124, 32),
    (252, 180, 48),
    (252, 232, 104),
)


_STOPS = np.linspace(0, 255, len(_ANCHORS))
_CHANNELS = [np.interp(np.arange(256), _STOPS, channel) for channel in zip(*_ANCHORS, strict=True)]
_TABLE = np.stack(_CHANNELS, axis=1).round().astype(np.uint8)


def colourise(map01: FloatArray) -> RGBArray:
    """Colours (H, W, 3) of a map (H, W); values outside 0..1 get the end colours."""
    _refuse_nan(map01)
    return _TABLE[(np.clip(map01, 0.0, 1.0) * 255).round().astype(np.uint8)]


def overlay(image: Image, map: FloatArray, scale: tuple[float, float] = (0.0, 1.0)) -> Pillow.Image:
    """The image with the map's colours on it, opacity growing with the value from none at low."""
    if map.shape != image.size_hw:
        raise InputError(
            f"{image.source}: the map has shape {map.shape} but the image {image.size_hw}. "
            "Give the map in the image's own size."
        )
    _refuse_nan(map)
    pixels = np.empty((*image.size_hw, 3), np.uint8)
    # In bands: four layers of a whole picture may take gigabytes.
    together = max(1, _BAND_PX // image.size_hw[1])
    for top in range(0, len(pixels), together):
        band = slice(top, top + together)
        layer = _coloured(map[band], scale, MAX_OPACITY).convert("RGBA")
        below = _eight_bits(image.pixels[band]).convert("RGBA")
        pixels[band] = np.asarray(Pillow.alpha_composite(below, layer).convert("RGB"))
    return Pillow.fromarray(pixels)


def map_layer(
    map: FloatArray, scale: tuple[float, float] = (0.0, 1.0), max_side_px: int | None = None
) -> Pillow.Image:
    """The map alone, to lie over its image: colours, and opacity from none at low to full at high.

    At an opacity of `MAX_OPACITY` it looks as `overlay` draws it.
    """
    if max_side_px is not None and max(map.shape) > max_side_px:
        shrink = max_side_px / max(map.shape)
        size = tuple(max(1, round(side * shrink)) for side in map.shape[::-1])
        small = Pillow.fromarray(np.ascontiguousarray(map, np.float32))
        map = np.asarray(small.resize((size[0], size[1]), Pillow.Resampling.BILINEAR))
    return _coloured(map, scale, 1.0)


def as_picture(image: Image) -> Pillow.Image:
    """The image itself as an 8-bit RGB picture."""
    return _eight_bits(image.pixels)


def _eight_bits(unit: FloatArray) -> Pillow.Image:
    pixels = (np.clip(unit, 0.0, 1.0) * 255).round().astype(np.uint8)
    return Pillow.fromarray(np.repeat(pixels[..., None], 3, 2) if pixels.ndim == 2 else pixels)


def outline(picture: Pillow.Image, mask: BoolArray) -> Pillow.Image:
    """Copy the picture with the mask's contour in cyan, on the mask's own edge pixels."""
    if mask.shape != (picture.height, picture.width):
        raise InputError(
            f"The mask has shape {mask.shape} but the picture {(picture.height, picture.width)}. "
            "Give the mask in the picture's own size."
        )
    picture = picture.convert("RGB")
    layer = outline_layer(mask)
    picture.paste(layer, mask=layer)
    return picture


def outline_layer(mask: BoolArray) -> Pillow.Image:
    """Draw the mask's contour alone, to lie over its image: cyan on nothing."""
    from scipy import ndimage

    # Wider lines on larger pictures: shown at a card's size they come out at 1 to 2 px.
    core = ndimage.binary_erosion(mask, iterations=max(1, round(min(mask.shape) / 300)))
    pixels = np.zeros((*mask.shape, 4), np.uint8)
    pixels[mask & ~core] = (*OUTLINE_COLOUR, 255)
    return Pillow.fromarray(pixels)


def legend(scale: tuple[float, float] = (0.0, 1.0)) -> Pillow.Image:
    """A colour bar of the fixed scale: pure colours above, as drawn on mid-grey below."""
    low, high = _checked_scale(scale)
    width, height, margin = 512, 32, 32
    ramp = np.tile(np.linspace(0, 1, width, dtype=np.float32), (height // 2, 1))
    tissue = Image(np.full_like(ramp, 0.5), "legend")
    bar = np.concatenate([colourise(ramp), np.asarray(overlay(tissue, ramp))])
    picture = Pillow.new("RGB", (width + 2 * margin, height + 30), "white")
    picture.paste(Pillow.fromarray(bar), (margin, 4))
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(18)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        text = f"{low + share * (high - low):.2g}"
        draw.text((margin + share * (width - 1), height + 8), text, "black", font, anchor="mt")
    return picture


def encode_png(
    picture: Pillow.Image, max_side_px: int | None = None, quickly: bool = False
) -> bytes:
    """Encode a picture as PNG, shrunk first if a side is longer than `max_side_px`.

    As small as it gets, or `quickly`: a quarter larger in a tenth of the time.
    """
    if max_side_px is not None and max(picture.size) > max_side_px:
        picture = picture.copy()
        picture.thumbnail((max_side_px, max_side_px), Pillow.Resampling.LANCZOS)
    buffer = io.BytesIO()
    how = {"compress_level": 1} if quickly else {"optimize": True}
    picture.save(buffer, format="PNG", **how)
    return buffer.getvalue()


def png_source(png: bytes) -> str:
    """Write PNG bytes as an address that holds them, for pages that need no other file."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def save_png(picture: Pillow.Image, path: Path) -> None:
    """Write the picture; a reader sees the old file or the whole new one, never a part."""
    write_atomic(path, encode_png(picture, quickly=True))


def _coloured(map: FloatArray, scale: tuple[float, float], max_opacity: float) -> Pillow.Image:
    """A byte for each pixel, and colours with their opacity in a table: a third of the size."""
    low, high = _checked_scale(scale)
    map01 = np.clip((map - low) / (high - low), 0.0, 1.0)
    picture = Pillow.fromarray((map01 * 255).round().astype(np.uint8)).convert("P")
    opacity = (max_opacity * np.arange(256)).round().astype(np.uint8)[:, None]
    picture.putpalette(np.hstack([_TABLE, opacity]).tobytes(), "RGBA")
    return picture


def _refuse_nan(map: FloatArray) -> None:
    if not np.isfinite(map).all():
        raise InputError("The map holds NaN or infinite values. Score the image again.")


def _checked_scale(scale: tuple[float, float]) -> tuple[float, float]:
    low, high = scale
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise SettingsError(f"The scale is {scale}; it must be two numbers, the lower one first.")
    return low, high


def case_overlay(case: Case, prediction: Prediction, scale: tuple[float, float]) -> Pillow.Image:
    """Draw the map over the picture, over the highest slice or frame, or over the slide."""
    if case.kind == "slide":
        small, map = slide_picture(case, prediction.map, prediction.source_px_per_px)
        return as_picture(small) if prediction.map.size == 0 else overlay(small, map, scale)
    number = prediction.highest
    map = prediction.map if case.kind == "image" else prediction.map[number]
    return overlay(case.images[number], map, scale)


def slide_picture(case: Case, map: FloatArray, step: float) -> tuple[Image, FloatArray]:
    """A slide in small, and its map in the same pixels; `step` slide pixels are one value."""
    from recap.io.slide import thumbnail

    small = thumbnail(Path(case.source), SLIDE_PX)
    if map.size == 0:
        return small, np.zeros(small.size_hw, np.float32)
    seen = np.nan_to_num(map, nan=0.0)
    # The last values of a map reach beyond the slide, where the thumbnail ends.
    height, width = (side / step for side in case.size_hw or seen.shape)
    size = (small.size_hw[1], small.size_hw[0])
    box = (0, 0, width, height)
    resized = Pillow.fromarray(seen).resize(size, Pillow.Resampling.NEAREST, box)
    return small, np.asarray(resized, np.float32)
