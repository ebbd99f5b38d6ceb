"""PNG files in half of the time that Pillow takes.

Pillow weighs five filters against each other for every row, which takes longer than packing does.
Here every row is filtered alike, by the mean of the pixels to the left and above, and zlib looks
for nothing but runs of equal bytes: overlays come out a tenth larger than Pillow packs them at its
quickest.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_AVERAGE = 3  # the filter's number; the first row and column count as black beyond the border
_BAND_BYTES = 2**22
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}  # grey, RGB, RGBA by their channels


def quick_png(pixels: NDArray[np.uint8]) -> bytes:
    """The bytes of a picture, (H, W) grey or (H, W, C) with 3 or 4 channels."""
    height, width = pixels.shape[:2]
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    packer = zlib.compressobj(1, strategy=zlib.Z_RLE)
    rows, packed = pixels.reshape(height, -1), b""
    together = max(1, _BAND_BYTES // max(1, rows.shape[1]))
    above = np.zeros_like(rows[:1])
    for top in range(0, height, together):  # in bands: filtering makes several copies
        band = rows[top : top + together]
        packed += packer.compress(_filtered(band, above, channels).data)
        above = band[-1:]
    packed += packer.flush()
    chunks = ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(name, data) for name, data in chunks)


def _filtered(
    rows: NDArray[np.uint8], before: NDArray[np.uint8], channels: int
) -> NDArray[np.uint8]:
    """Each row's filter and its bytes less the mean of the ones to the left and above."""
    left = np.zeros_like(rows)
    left[:, channels:] = rows[:, :-channels]
    above = np.concatenate([before, rows[:-1]])
    filtered = np.empty((len(rows), rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = _AVERAGE
    # The mean of two bytes, rounded down, without leaving eight bits.
    np.subtract(rows, (left & above) + ((left ^ above) >> 1), out=filtered[:, 1:])
    return filtered


def _chunk(name: bytes, data: bytes) -> bytes:
    checked = name + data
    return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))
