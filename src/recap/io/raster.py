"""Raster files and arrays to `Image`: PNG, JPEG, TIFF, BMP and WebP, told apart by content.

Grey images stay (H, W); everything else becomes RGB (H, W, 3). Transparent pixels are laid over
black, and EXIF orientation is applied. Grey keeps its 16 bits; Pillow decodes 16-bit colour to 8.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL import ImageOps, UnidentifiedImageError

from recap.errors import Code, InputError, RecapError
from recap.io.decoding import BUDGET, no_warnings, not_there
from recap.types import BoolArray, FloatArray, Image

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
# Just under the size at which Pillow itself refuses to decode.
MAX_PIXELS = 178_000_000
# An integer mask whose largest value is below this part of its range holds label numbers.
LABEL_RANGE = 1 / 16
# 12 bits in a 16-bit file reach no more than this; shown as 16 bits they are all but black.
_TWELVE_BITS = 4095
# Darker areas of a mask may be what JPEG left of black.
_DARKEST_GREY = 0.1

_TIFF_BITS, _TIFF_PHOTOMETRIC = 258, 262
TILES = (
    "Shrink it or cut it into tiles, or have it scored tile by tile as a slide (`vips tiffsave "
    "--tile --pyramid`, and recap-ad[slides] installed)."
)
"""What to do with a picture that takes too much memory."""
_EXIF_ORIENTATION = 0x0112
_BAND_PX = 2**20
# Bytes for a pixel: as Pillow keeps it, in what the WebP decoder holds beside it, and in what
# becomes of the floats of a mask, and of one whose even areas are looked for.
_STORED_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}
_WEBP_BYTES, _MASK_BYTES, _FILTER_BYTES = 20, 6, 12


def read_raster(path: str | Path) -> Image:
    """Read one raster file as grey (H, W) or RGB (H, W, 3), float32 in 0..1."""
    with _decoded(Path(path)) as values:
        _refuse_twelve_bits(values, str(path))
        return Image(_to_unit(values, str(path)), str(path))


def raster_px(path: Path) -> int:
    """The pixels of a raster file by its header; 0 where that cannot be read."""
    try:
        with path.open("rb") as stream, no_warnings, _open(stream) as image:
            return image.width * image.height
    except Exception:  # reading it says why
        return 0


def read_mask(path: str | Path) -> BoolArray:
    """Read a lesion mask (H, W) from a file; `_marked` says what its values mean."""
    with _decoded(Path(path), _MASK_BYTES) as values:
        return _marked(values, str(path))


def read_mask_of(image: Image, path: Path) -> BoolArray:
    """Read the mask of an image, which must have its size."""
    mask = read_mask(path)
    if mask.shape != image.size_hw:
        raise InputError(
            f"{path}: the mask is {mask.shape[1]}×{mask.shape[0]} pixels but its image "
            f"{image.source} is {image.size_hw[1]}×{image.size_hw[0]}. They must match."
        )
    return mask


def mask_from_array(array: Any, source: str = "mask") -> BoolArray:
    """A lesion mask (H, W) from an array, whose values mean what they would mean in a file."""
    if isinstance(array, PillowImage.Image):
        return _marked(_decode_given(array, source), source)
    values = np.asarray(array)
    if values.ndim != 2 and not (values.ndim == 3 and values.shape[2] in (1, 3, 4)):
        raise InputError(
            f"{source}: a mask must have the shape (H, W), but this one has {values.shape}. Give "
            "one mask for each image."
        )
    return _marked(values, source)


def _marked(values: NDArray[Any], source: str) -> BoolArray:
    """True where any channel is above half of the value range.

    A mask of 0 and one other value is true where it is not 0, be that 1 or grey. Label numbers,
    and several values of which none is above half, are refused: where they cut nobody knows.
    """
    if values.dtype == np.bool_ or np.issubdtype(values.dtype, np.integer):
        colours = _without_alpha(values)
        low, top = int(colours.min(initial=0)), int(colours.max(initial=0))
        if low >= 0 and top <= 1:
            return np.asarray(colours.any(axis=2))
        _refuse_labels(values.dtype, low, top, source)
    elif np.issubdtype(values.dtype, np.floating):
        _refuse_wide_floats(values, source)
    strength = _without_alpha(_to_unit(values, source)).max(axis=2)
    marked = strength > 0.5
    if marked.any() or not strength.any():
        return np.asarray(marked)
    levels = np.unique(strength)
    if len(levels) == 2 and levels[0] == 0:
        return np.asarray(strength > 0)
    raise InputError(
        f"{source}: the values of this mask reach {levels[0]:.0%} to {levels[-1]:.0%} of full "
        "brightness, so that it is not clear what they mark. Save it with 0 for healthy and full "
        "brightness for lesion."
    )


def _refuse_labels(dtype: np.dtype[Any], low: int, top: int, source: str) -> None:
    if dtype not in (np.uint8, np.uint16):
        raise InputError(
            f"{source}: a mask of type {dtype} with values from {low} to {top} does not say which "
            "of them are lesion. Give it as booleans, or with 0 for healthy and 1 for lesion."
        )
    most = np.iinfo(dtype).max
    if top < LABEL_RANGE * most:
        raise InputError(
            f"{source}: the largest value of this mask is {top}, which looks like label numbers. "
            f"Save the mask with 0 for healthy and {most} for lesion."
        )


def _refuse_wide_floats(values: NDArray[Any], source: str) -> None:
    """Before they are taken for an image, whose remedy is an intensity window."""
    if not np.isfinite(values).all():
        raise InputError(
            f"{source}: the mask has NaN or infinite values. Give 0 for healthy and 1 for lesion."
        )
    low, high = float(values.min(initial=0)), float(values.max(initial=0))
    if low < 0 or high > 1:
        raise InputError(
            f"{source}: a mask of floats must lie in 0..1, but this one spans {low:g} to {high:g}. "
            "Give it as booleans, or with 0 for healthy and 1 for lesion."
        )


def unmarked_greys(path: str | Path) -> list[float]:
    """Greys, as shares of full brightness, that fill areas of a mask though `read_mask` cuts them.

    Smoothed edges pass through greys, but an area of one was drawn: it may stand for a lesion too.
    """
    from scipy import ndimage

    with _decoded(Path(path), _FILTER_BYTES) as values:
        strength = _without_alpha(_to_unit(values, str(path))).max(axis=2)
        even = ndimage.minimum_filter(strength, 3) == ndimage.maximum_filter(strength, 3)
        grey = (strength > max(_DARKEST_GREY, strength.min())) & (strength <= 0.5)
        return np.unique(strength[even & grey]).tolist() if (strength > 0.5).any() else []


def image_from_array(array: Any, source: str = "array") -> Image:
    """Check a numpy array (uint8, uint16, bool or float 0..1; grey, RGB or RGBA) as an `Image`.

    A Pillow image is read as its file would be: palettes, transparency, orientation.
    """
    if isinstance(array, PillowImage.Image):
        values = _decode_given(array, source)
        _refuse_twelve_bits(values, source)
        return Image(_to_unit(values, source), source)
    if not hasattr(array, "__array__"):
        raise InputError(
            f"{source}: one image is a path, an array or a Pillow image, not a value of type "
            f"{type(array).__name__}."
        )
    values = np.asarray(array)
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.ndim != 2 and not (values.ndim == 3 and values.shape[2] in (3, 4)):
        raise InputError(
            f"{source}: an image must have the shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), "
            f"but this one has {values.shape}. Channels come last; pass volumes slice by slice."
        )
    _refuse_twelve_bits(values, source)
    return Image(_to_unit(values, source), source)


def refuse_one_image(given: object, name: str) -> None:
    """Refuse an image in colour where several are expected: its rows would be taken for images."""
    if isinstance(given, np.ndarray) and given.ndim == 3 and given.shape[2] in (1, 3, 4):
        raise InputError(
            f"{name}: an array of shape {given.shape} is one image, not a stack. Give [image]."
        )


def _without_alpha(values: NDArray[Any]) -> NDArray[Any]:
    """Keep the colour channels: (H, W, 1) or (H, W, 3)."""
    if values.ndim == 2:
        return values[..., None]
    return values[..., : 1 if values.shape[2] == 2 else 3]


def _to_unit(values: NDArray[Any], source: str) -> FloatArray:
    """Scale to 0..1 by the pixel type, then lay transparent pixels over black."""
    if values.size == 0:
        raise InputError(f"{source}: the image has no pixels (shape {values.shape}).")
    if values.dtype == np.bool_:
        unit = values.astype(np.float32)
    elif values.dtype in (np.uint8, np.uint16):
        unit = values.astype(np.float32)
        unit /= np.float32(np.iinfo(values.dtype).max)
    elif np.issubdtype(values.dtype, np.floating):
        unit = _checked_floats(values, source)
    else:
        raise InputError(
            f"{source}: pixels of type {values.dtype} have no known range. "
            "Convert them to 8 or 16 bit unsigned integers, or to floats in 0..1."
        )
    if unit.ndim == 3 and unit.shape[2] in (2, 4):
        unit = unit[..., :-1] * unit[..., -1:]
        unit = unit[..., 0] if unit.shape[2] == 1 else unit
    return np.ascontiguousarray(unit)


def _refuse_twelve_bits(values: NDArray[Any], source: str) -> None:
    """A lesion in what is all but black is not seen: such an image would pass as normal."""
    if values.dtype != np.uint16 or values.size == 0:
        return
    top = int(_without_alpha(values).max())
    if 0 < top <= _TWELVE_BITS:
        raise InputError(
            f"{source}: 16-bit pixels that reach only {top} of 65535 are all but black. If they "
            "have 12 bits, multiply them by 16, and those of all other images. One that is meant "
            "to be so dark can be saved with 8 bits."
        )


def _checked_floats(values: NDArray[Any], source: str) -> FloatArray:
    if not np.isfinite(values).all():
        raise InputError(f"{source}: the image has NaN or infinite pixels. Replace them first.")
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        raise InputError(
            f"{source}: float pixels must lie in 0..1, but these span {low:g} to {high:g}. "
            "Apply an intensity window first, the same one for all images of a kind."
        )
    return values.astype(np.float32)


@contextmanager
def _decoded(path: Path, more_bytes: int = 0) -> Iterator[NDArray[Any]]:
    """A file as (H, W), (H, W, 2), (H, W, 3) or (H, W, 4), with alpha last where there is any.

    The block has room for what it makes of the values: floats, and `more_bytes` for each pixel.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path}: this is a folder, not an image file.")
        if path.stat().st_size == 0:
            raise InputError(f"{path}: the file is empty. Copy or export it again.")
        # Opened here because Pillow maps a path's file and then scrambles turned TIFFs.
        with path.open("rb") as stream, no_warnings, _open(stream) as image:
            _check_header(image, path)
            px = image.width * image.height
            with BUDGET.room(px * (_bytes_per_px(image) + more_bytes), str(path), TILES):
                values = _decode(image, path)
                image.close()  # its own copy of the pixels
                yield values
    except RecapError:
        raise
    except PillowImage.DecompressionBombError as error:
        raise InputError(_too_large(path), code="too_large") from error
    # Pillow's decoders answer a damaged file with almost any exception.
    except Exception as error:
        code: Code | None = "no_memory" if isinstance(error, MemoryError) else None
        raise InputError(f"{path}: {_reason(error, path)}", code=code, path=path) from error


def _open(stream: IO[bytes]) -> PillowImage.Image:
    return PillowImage.open(stream, formats=FORMATS)


def _bytes_per_px(image: PillowImage.Image) -> int:
    """The most memory that a pixel takes at a time, from the decoder to floats, by the header."""
    mode = _mode_of(image)
    channels = len(mode) if mode else 1
    width = 1 if mode else 4
    stored = _STORED_BYTES.get(image.mode, 4)
    decoder = _WEBP_BYTES if image.format == "WEBP" else 0
    if image.info.get("progressive"):  # all coefficients, before the first pixel
        decoder = 2 * len(image.getbands())
    # To ask a PNG for its orientation is to decode it.
    turned = stored if "exif" in image.info or image.format == "TIFF" else 0
    decoding = stored + max(decoder, turned, width * channels)
    alpha = channels in (2, 4)
    floats = 4 * channels + (8 * (channels - 1) if alpha else 0)
    return max(decoding, width * channels + floats)


def _decode_given(image: PillowImage.Image, source: str) -> NDArray[Any]:
    try:
        return _decode(image, source)
    except OSError as error:  # opened from a damaged file, of which only the header was read
        raise InputError(f"{source}: {_reason(error, Path(source))}") from error


def _reason(error: Exception, path: Path) -> str:
    match error:
        case FileNotFoundError():
            return not_there(path)
        case MemoryError():
            return "takes more memory than there is. Close other programs, or shrink it."
        case PermissionError():
            return "no permission to read this file."
        case UnidentifiedImageError():
            return f"not an image that can be read. Use one of {', '.join(FORMATS)}."
        case _:
            return f"the file is damaged or incomplete ({error}). Copy or export it again."


def _too_large(path: Path) -> str:
    return (
        f"{path}: the image has more than {MAX_PIXELS // 10**6} million pixels, the most that "
        "is read. Cut it into tiles or shrink it."
    )


def _check_header(image: PillowImage.Image, path: Path) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise InputError(_too_large(path), code="too_large")
    frames = getattr(image, "n_frames", 1)
    # The further frames of a camera's MPO file are previews of the first.
    if frames > 1 and image.format != "MPO":
        raise InputError(
            f"{path}: the file holds {frames} frames. Save each frame as a file of its own."
        )


def _decode(image: PillowImage.Image, path: Path | str) -> NDArray[Any]:
    tags: Any = getattr(image, "tag_v2", {})
    image.load()
    if image.getexif().get(_EXIF_ORIENTATION, 1) != 1:  # it would copy the others, too
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        return _decode_integers(image, tags, path)
    return pixels_of(image, _mode_of(image))


def _mode_of(image: PillowImage.Image) -> str:
    """The mode to convert an image to: grey or RGB, with alpha where there is any; "" for none."""
    if image.mode.startswith("I") or image.mode == "F":
        return ""
    transparent = "transparency" in image.info
    if image.mode == "PA" or (transparent and image.mode in ("P", "RGB")):
        return "RGBA"
    mode = {"1": "L", "L": "L", "LA": "LA", "La": "LA", "RGBA": "RGBA", "RGBa": "RGBA"}.get(
        image.mode, "RGB"
    )
    return "LA" if transparent and mode == "L" else mode


def pixels_of(image: PillowImage.Image, mode: str = "") -> NDArray[Any]:
    """The pixels of a Pillow image in a mode, by default its own.

    Taken in bands: numpy would make three more copies of the whole on the way.
    """
    together = max(1, _BAND_PX // max(1, image.width))
    values: NDArray[Any] | None = None
    for top in range(0, image.height, together):
        band = image.crop((0, top, image.width, min(top + together, image.height)))
        part = np.asarray(band.convert(mode) if mode and band.mode != mode else band)
        if values is None:
            values = np.empty((image.height, *part.shape[1:]), part.dtype)
        values[top : top + len(part)] = part
    return np.asarray(image) if values is None else values


def _decode_integers(image: PillowImage.Image, tags: Any, path: Path | str) -> NDArray[Any]:
    """16-bit grey; wider or signed integers say nothing about their range and are refused."""
    values = pixels_of(image)
    if image.mode == "I" and (tags or values.min() < 0 or values.max() > 65535):
        raise InputError(
            f"{path}: 32-bit or signed integer pixels ({values.min()} to {values.max()}) have no "
            "known range. Save the image with 8 or 16 bits after applying an intensity window."
        )
    top = 2 ** int(tags.get(_TIFF_BITS, (16,))[0]) - 1
    # Pillow inverts "white is zero" for 8 bits only.
    if tags.get(_TIFF_PHOTOMETRIC) == 0:
        values = top - values
    if top == 65535:
        return values.astype(np.uint16, copy=False)
    scaled = values.astype(np.float64) * (65535 / top)
    return np.rint(scaled).astype(np.uint16)
