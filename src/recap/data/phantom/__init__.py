"""Made-up medical images with lesions and masks, for tests, demos and trying things out."""

from recap.data.phantom.write import PHANTOMS, phantom, write_phantoms

__all__ = ["PHANTOMS", "phantom", "write_phantoms"]
