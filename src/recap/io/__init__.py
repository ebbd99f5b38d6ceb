"""From bytes to images and back to the image's own pixel frame."""

from recap.io.raster import image_from_array, read_image, read_mask

__all__ = ["image_from_array", "read_image", "read_mask"]
