"""What tells one picture from another: digests, and a small thumbnail to compare by content.

Medical images of one kind look alike, so thumbnails are compared by their fine structure: the
square root of the grey values, band-passed, with its contrast evened out. Two such pictures
correlate near 1 when one is a copy of the other, and far less when they show different people. The
256-bit hash is the signs of random projections of that picture, so that the share of bits in which
two hashes differ estimates the angle between the pictures: a cheap stand-in for the correlation.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage

from recap._download import sha256_of
from recap.errors import InputError
from recap.io import read_image
from recap.types import FloatArray

THUMB_PX = 64
HASH_BITS = 256
TURNS = 8
LEVELS = 49
# In thumbnail pixels: finer is noise and resampling, coarser is what all images of a kind share.
_FINE_PX, _COARSE_PX = 0.7, 2.0
# Contrast below this, of 0..1 after the square root, is background and stays faint.
_FAINT = 1 / 16
# Real scans have norms of 7 to 34.
_BLANK_NORM = 1.0
# Thumbnail values up to this, the root of grey level 10, are background.
_BACKGROUND_ROOT = 50

Thumbs = NDArray[np.uint8]
Hashes = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """One image file; `problem` says why its pixels could not be read."""

    sha256: str = ""
    pixels: str = ""
    """Digest of the decoded pixels: equal for the same picture in PNG and TIFF."""
    patient: str = ""
    """Whom the file itself says it shows."""
    thumb: Thumbs | None = None
    problem: str = ""


def fingerprint(path: Path) -> Fingerprint:
    """Read one image file; a file that cannot be read gives its problem."""
    try:
        sha256, image = sha256_of(path), read_image(path)
    except (InputError, OSError) as error:
        return Fingerprint(problem=str(error))
    pixels = image.pixels
    if pixels.ndim == 3 and (pixels == pixels[..., :1]).all():
        pixels = pixels[..., 0]
    values = np.ascontiguousarray(np.rint(pixels * 65535).astype("<u2"))
    digest = hashlib.sha256(repr(values.shape).encode() + values.tobytes()).hexdigest()
    return Fingerprint(sha256, digest, image.identity.patient, _thumb(pixels))


def structures(thumbs: Thumbs) -> FloatArray:
    """Fine structure of thumbnails: (N, 64, 64), each with mean 0 and norm 1 (0 where blank)."""
    fine, coarse = _blur(_FINE_PX), _blur(_COARSE_PX)
    roots = thumbs.astype(np.float32) / 255
    band = fine @ roots @ fine.T - coarse @ roots @ coarse.T
    even = band / (np.sqrt(coarse @ (band * band) @ coarse.T) + _FAINT)
    even -= even.mean(axis=(1, 2), keepdims=True)
    norm = np.sqrt((even * even).sum(axis=(1, 2), keepdims=True))
    # Scaled up, the rounding errors of blank pictures would all be copies of each other.
    even[(norm < _BLANK_NORM)[:, 0, 0]] = 0
    return np.asarray(even / np.maximum(norm, _BLANK_NORM), np.float32)


def turn(pictures: FloatArray, way: int) -> FloatArray:
    """Quarter turns (`way` mod 4) of pictures (N, H, W), mirrored first from way 4 on."""
    mirrored = pictures[:, :, ::-1] if way >= 4 else pictures
    return np.rot90(mirrored, way % 4, axes=(1, 2))


def hashes(pictures: FloatArray) -> Hashes:
    """The perceptual hash of fine structures (N, 64, 64): (N, 4) words of 64 bits."""
    signs = pictures.reshape(-1, THUMB_PX**2) @ _projections() > 0
    return np.packbits(signs, axis=1).view(np.uint64)


def hamming(first: Hashes, second: Hashes) -> NDArray[np.uint16]:
    """Bits in which each hash of the first list differs from each of the second: (N, M)."""
    counts = np.zeros((len(first), len(second)), np.uint16)
    for word in range(first.shape[1]):
        counts += _count_bits(first[:, word, None] ^ np.ascontiguousarray(second[:, word]))
    return counts


def grey_levels(thumbs: Thumbs) -> FloatArray:
    """Quantiles of each thumbnail's visible pixels in grey levels of 0..255: (N, 49)."""
    at = np.linspace(0.02, 0.98, LEVELS)
    rows = np.zeros((len(thumbs), LEVELS), np.float32)
    for row, roots in zip(rows, np.sort(thumbs.reshape(-1, THUMB_PX**2)), strict=True):
        dark = int(np.searchsorted(roots, _BACKGROUND_ROOT, side="right"))
        visible = roots[dark:] if dark < len(roots) else roots
        row[:] = visible[np.rint(at * (len(visible) - 1)).astype(np.intp)]
    return np.asarray(rows * rows / 255, np.float32)


def _thumb(pixels: FloatArray) -> Thumbs:
    grey = pixels if pixels.ndim == 2 else pixels @ np.array([0.299, 0.587, 0.114], np.float32)
    image = PillowImage.fromarray(np.ascontiguousarray(grey, np.float32))
    small = image.resize((THUMB_PX, THUMB_PX), PillowImage.Resampling.BILINEAR)
    # Roots keep the dark tissue apart that eight plain bits would merge.
    return np.rint(255 * np.sqrt(np.clip(np.asarray(small), 0, 1))).astype(np.uint8)


@lru_cache(maxsize=4)
def _blur(sigma_px: float) -> FloatArray:
    """A Gaussian blur of one axis as a matrix, the border's value going on outside."""
    reach = int(4 * sigma_px + 0.5)
    offsets = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (offsets / sigma_px) ** 2)
    matrix = np.zeros((THUMB_PX, THUMB_PX), np.float32)
    for row in range(THUMB_PX):
        np.add.at(matrix[row], np.clip(row + offsets, 0, THUMB_PX - 1), weights / weights.sum())
    return matrix


@lru_cache(maxsize=1)
def _projections() -> FloatArray:
    # PCG64's raw stream is the same in every release of numpy; its Gaussian draws need not be.
    raw = np.random.PCG64(0).random_raw(THUMB_PX**2 * HASH_BITS // 64)
    bits = np.unpackbits(raw.astype("<u8").view(np.uint8))
    signs = bits.reshape(THUMB_PX**2, HASH_BITS).astype(np.float32) * 2 - 1
    return np.asarray(signs / THUMB_PX, np.float32)


if hasattr(np, "bitwise_count"):

    def _count_bits(words: Hashes) -> NDArray[np.uint8]:
        return np.bitwise_count(words)

else:  # numpy 1
    _BITS_OF_BYTE = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)

    def _count_bits(words: Hashes) -> NDArray[np.uint8]:
        of_bytes = _BITS_OF_BYTE[np.ascontiguousarray(words).view(np.uint8)]
        return of_bytes.reshape(*words.shape, 8).sum(axis=-1, dtype=np.uint8)
