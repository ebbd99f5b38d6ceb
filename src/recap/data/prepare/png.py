"""PNG files with the same bytes for the same pixels, and the benchmark's places for them."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage

from recap.data.prepare.plan import Output, Split
from recap.types import BoolArray


def png_bytes(pixels: NDArray[np.uint8]) -> bytes:
    """Encode grey (H, W) or RGB (H, W, 3) without any metadata, always with the same settings."""
    buffer = io.BytesIO()
    image = PillowImage.fromarray(np.ascontiguousarray(pixels))
    image.save(buffer, format="PNG", compress_level=6, optimize=False)
    return buffer.getvalue()


def eight_bit(unit: NDArray[Any]) -> NDArray[np.uint8]:
    """Round 0..1 to 0..255."""
    return np.rint(np.clip(unit, 0, 1) * 255).astype(np.uint8)


def image_output(split: Split, abnormal: bool, name: str, pixels: NDArray[np.uint8]) -> Output:
    """An image in its place: `<split>/{good,Ungood}/img/<name>`."""
    return Output(image_path(split, abnormal, name), png_bytes(pixels))


def mask_output(split: Split, name: str, mask: BoolArray) -> Output:
    """The mask of an abnormal image: `<split>/Ungood/anomaly_mask/<name>`, 0 and 255."""
    data = png_bytes(mask.astype(np.uint8) * 255)
    return Output(f"{split}/Ungood/anomaly_mask/{name}", data)


def image_path(split: Split, abnormal: bool, name: str) -> str:
    """Where an image stands in the domain's folder."""
    return f"{split}/{'Ungood' if abnormal else 'good'}/img/{name}"
