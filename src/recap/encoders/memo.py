"""A memo of encoded images on disk: each is encoded once, whoever asks and in whichever process.

An entry is named by everything that decides its value: the pixels, the weights, the size, the
tapped layers and the normalisation. Nothing is ever out of date, and two processes that meet
write the same bytes.
"""

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from recap.atomic import replacing

if TYPE_CHECKING:
    from recap.encoders.vit import Encoder


class TapsMemo:
    """Tapped patch tokens by content, one file per image, up to a size of them all.

    What comes after that is encoded every time.
    """

    def __init__(self, folder: Path, limit_bytes: float = math.inf) -> None:
        self._folder = folder
        self._left = limit_bytes
        self.encoded = 0
        """Images that were not there and had to be encoded."""

    def taps(self, encoder: "Encoder", pixels: Tensor) -> Tensor:
        """What `encoder.compute_taps` gives: (B, 3, S, S) -> (B, L, R, width)."""
        context = _context(encoder)
        return torch.cat([self._one(encoder, image[None], context) for image in pixels])

    def _one(self, encoder: "Encoder", pixels: Tensor, context: bytes) -> Tensor:
        content = np.ascontiguousarray(pixels.cpu().numpy()).tobytes()
        name = hashlib.sha256(context + content).hexdigest()
        file = self._folder / name[:2] / f"{name}.npy"
        try:
            return torch.from_numpy(np.load(file, allow_pickle=False)).to(pixels.device)
        # Not there, or damaged by a full disk: encoded now.
        except (OSError, ValueError, EOFError):
            taps = encoder.compute_taps(pixels)
        self.encoded += 1
        self._left -= taps.nbytes
        if self._left < 0:
            return taps
        with replacing(file) as stream:
            np.save(stream, taps.cpu().numpy(), allow_pickle=False)
        return taps


def _context(encoder: "Encoder") -> bytes:
    parts = (encoder.checksum, encoder.input_px, encoder.layers, encoder.interpolate)
    return repr((*parts, encoder.mean.flatten().tolist(), encoder.std.flatten().tolist())).encode()
