"""Made-up medical images with lesions and masks, for tests, demos and trying things out."""

from recap.data.phantom.volumes import head_volume, write_head_volumes
from recap.data.phantom.write import PHANTOMS, phantom, write_phantoms

__all__ = ["PHANTOMS", "head_volume", "phantom", "write_head_volumes", "write_phantoms"]
