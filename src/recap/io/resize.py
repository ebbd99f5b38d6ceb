"""An invertible resize: image to the encoder's square, map back to the image's own frame.

Both ways use half-pixel centres: the centre of source column j lies at (j + 0.5) · S / W − 0.5.
"""

from dataclasses import dataclass

import numpy as np
from PIL import Image as PillowImage

from recap.errors import InputError
from recap.io.raster import pixels_of
from recap.types import BoolArray, FloatArray


@dataclass(frozen=True)
class SquareResize:
    """Stretch images of one size to a square of `size_px`, and bring square maps back."""

    source_hw: tuple[int, int]
    size_px: int

    def apply(self, pixels: FloatArray) -> FloatArray:
        """Resize grey or RGB pixels to (size_px, size_px, 3) by antialiased bicubic, in 0..1."""
        self._check(pixels.shape[:2], self.source_hw)
        if pixels.ndim == 2:
            grey = self._bicubic(pixels)
            return np.repeat(grey[..., None], 3, axis=2)
        return np.stack([self._bicubic(pixels[..., c]) for c in range(3)], axis=2)

    def apply_mask(self, mask: BoolArray) -> BoolArray:
        """Resize a mask to the square, each pixel taking the source pixel under its centre.

        A lesion too small to lie under any centre marks the pixels that it is in: it must not
        vanish, or its image would be taken for one without a lesion.
        """
        self._check(mask.shape, self.source_hw)
        rows, columns = (
            ((2 * np.arange(self.size_px) + 1) * side) // (2 * self.size_px)
            for side in self.source_hw
        )
        square = mask[np.ix_(rows, columns)]
        if mask.any() and not square.any():
            places = np.argwhere(mask) * self.size_px // np.array(self.source_hw)
            square[tuple(places.T)] = True
        return square

    def invert(self, map: FloatArray) -> FloatArray:
        """Resize a square map to the source size, bilinear, within the map's own range."""
        self._check(map.shape, (self.size_px, self.size_px))
        if self.source_hw == map.shape:
            return map
        resized = _resize(map, self.source_hw, PillowImage.Resampling.BILINEAR)
        return np.clip(resized, map.min(), map.max(), out=resized)

    def _bicubic(self, channel: FloatArray) -> FloatArray:
        if channel.shape == (self.size_px, self.size_px):
            return channel
        square = (self.size_px, self.size_px)
        small = _resize(channel, square, PillowImage.Resampling.BICUBIC)
        return np.clip(small, 0, 1, out=small)

    def _check(self, seen: tuple[int, ...], expected: tuple[int, int]) -> None:
        if tuple(seen) != tuple(expected):
            raise InputError(
                f"This resize was made for {expected[0]}x{expected[1]} pixels, "
                f"but was given {'x'.join(map(str, seen))}. Make one for each image size."
            )


def _resize(
    channel: FloatArray, size_hw: tuple[int, int], method: PillowImage.Resampling
) -> FloatArray:
    # Mode F keeps the depth that 8-bit modes would lose; Pillow widens the kernel when shrinking.
    image = PillowImage.fromarray(np.ascontiguousarray(channel, dtype=np.float32))
    return pixels_of(image.resize((size_hw[1], size_hw[0]), method))
