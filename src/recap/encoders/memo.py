"""Encoded images, kept on disk: each is encoded once, whoever asks and in whichever process.

An entry is named by everything that decides its value: the pixels, the weights and how they are
run, the size, the layers and the normalisation. Nothing is ever out of date, and two processes that
meet write the same bytes. Random weights have no name of their own: what they give is not kept.
"""

import hashlib
import math
from collections.abc import Callable, Hashable
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recap._files import replacing
from recap.encoders.registry import RANDOM, preprocessing_fingerprint
from recap.errors import InputError

Compute = Callable[[Tensor], Tensor]


class Memo:
    """Tokens of the untouched encoder by content, one file per image, up to a size of them all.

    What comes after that is encoded every time, as is all that follows a failed write where the
    memo is `optional`: it only saves time.
    """

    def __init__(self, folder: Path, limit_bytes: float = math.inf, optional: bool = False) -> None:
        self._folder = folder
        self._left = limit_bytes
        self._optional = optional
        self._counting = Lock()  # images may be scored side by side
        self.encoded = 0
        """Images that were not there and had to be encoded."""

    def hidden(self, key: Hashable, pixels: Tensor, compute: Compute) -> Tensor:
        """Give what `compute` does for a batch: (B, 3, S, S) -> (B, L, T, width)."""
        context = repr(key).encode()
        return torch.cat([self._one(compute, image[None], context) for image in pixels])

    def _one(self, compute: Compute, pixels: Tensor, context: bytes) -> Tensor:
        content = np.ascontiguousarray(pixels.cpu().numpy()).tobytes()
        name = hashlib.sha256(context + content).hexdigest()
        file = self._folder / name[:2] / f"{name}.npy"
        try:
            return torch.from_numpy(np.load(file, allow_pickle=False)).to(pixels.device)
        # Not there, or damaged by a full disk: encoded now.
        except (OSError, ValueError, EOFError):
            tokens = compute(pixels)
        with self._counting:
            self.encoded += 1
            self._left -= tokens.nbytes
            fits = self._left >= 0
        if fits:
            self._keep(file, tokens)
        return tokens

    def _keep(self, file: Path, tokens: Tensor) -> None:
        try:
            with replacing(file) as stream:
                np.save(stream, tokens.cpu().numpy(), allow_pickle=False)
        except InputError:
            if not self._optional:
                raise
            with self._counting:
                self._left = -math.inf


def encoder_key(encoder: Any) -> tuple[Hashable, ...]:
    """Make a key that is the same for encoders that give the same tokens.

    Those that were never trained are all called "random": only the very same one is the same.
    """
    weights = f"random {id(encoder)}" if encoder.checksum == RANDOM else encoder.checksum
    how = (encoder.input_px, encoder.layers, encoder.interpolate)
    return (weights, *how, repr(sorted(preprocessing_fingerprint(encoder).items())))
