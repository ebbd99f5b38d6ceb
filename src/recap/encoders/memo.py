"""Encoded images, kept: each is encoded once, whoever asks and, on disk, in whichever process.

An entry is named by everything that decides its value: the pixels, the weights and how they are
run, the size, the layers and the normalisation. Nothing is ever out of date, and two processes that
meet write the same bytes. Random weights have no name of their own: on disk what they give is not
kept.
"""

import hashlib
import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, local
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from recap._files import replacing
from recap.encoders.registry import RANDOM, preprocessing_fingerprint
from recap.errors import InputError

if TYPE_CHECKING:
    from recap.encoders.vit import Encoder

Compute = Callable[[Tensor], Tensor]
_HERE = local()
"""What this thread shares at the moment."""


class Shared:
    """What encoders gave for the images at hand, in memory: detectors share them."""

    def __init__(self) -> None:
        self._seen: list[tuple[Hashable, Tensor, Tensor]] = []

    @contextmanager
    def used(self) -> Iterator[None]:
        """Have every encoder that this thread runs meanwhile look here first."""
        before = getattr(_HERE, "shared", None)
        _HERE.shared = self
        try:
            yield
        finally:
            _HERE.shared = before

    def hidden(self, key: Hashable, pixels: Tensor, compute: Compute) -> Tensor:
        """What `compute` gives for a batch, from here if the very same was asked for."""
        for known, images, tokens in self._seen:
            if known == key and images.device == pixels.device and torch.equal(images, pixels):
                return tokens
        tokens = compute(pixels)
        self._seen.append((key, pixels, tokens))
        return tokens


def shared_here() -> Shared | None:
    """What this thread shares, if anything; a graph that is traced shares nothing."""
    return None if torch.compiler.is_compiling() else getattr(_HERE, "shared", None)


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
        """What `compute` gives for a batch: (B, 3, S, S) -> (B, L, T, width)."""
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


def encoder_key(encoder: "Encoder") -> tuple[Hashable, ...]:
    """The same for encoders that give the same tokens.

    Those that were never trained are all called "random": only the very same one is the same.
    """
    weights = f"random {id(encoder)}" if encoder.checksum == RANDOM else encoder.checksum
    how = (encoder.input_px, encoder.layers, encoder.interpolate)
    return (weights, *how, repr(sorted(preprocessing_fingerprint(encoder).items())))
