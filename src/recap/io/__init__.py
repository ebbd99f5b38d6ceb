"""From bytes to images and back to the image's own pixel frame."""

from recap.io.case import Case
from recap.io.formats import open_file, read_image
from recap.io.raster import image_from_array, mask_from_array, read_mask

__all__ = [
    "Case",
    "image_from_array",
    "mask_from_array",
    "open_file",
    "read_image",
    "read_mask",
]
