"""Features of the frozen encoder: of a batch, and of all images of a fit, computed once."""

import json
import math
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recap._files import write_atomic
from recap.encoders.vit import Encoder
from recap.errors import TrainingError
from recap.pipeline import side_by_side
from recap.progress import Progress

ENCODE_AT_ONCE = 8
"""Images between two marks of progress: at most these are encoded again after a kill."""


class Features:
    """A batch as the frozen encoder sees it: `hidden` (B, L, T, width), and what follows from it.

    Everything is computed when it is first asked for. `pixels` (B, 3, S, S) are those of the same
    images; training has no need of them.
    """

    def __init__(self, encoder: Encoder, hidden: Tensor, pixels: Tensor | None = None) -> None:
        self.encoder = encoder
        self.hidden = hidden
        self.pixels = pixels

    @cached_property
    def layers(self) -> list[Tensor]:
        """Patch tokens of each layer, (B, R, width) each."""
        return [self.encoder.patches(layer).contiguous() for layer in self.hidden.unbind(dim=1)]

    @cached_property
    def class_tokens(self) -> Tensor:
        """Unit class tokens of the layers, side by side: (B, L · width)."""
        tokens = self.encoder.class_tokens(self.hidden)
        return F.normalize(tokens, dim=-1).flatten(1)

    @cached_property
    def descriptor(self) -> Tensor:
        """The mean patch of each layer, all side by side, as unit vectors: (B, L · width)."""
        means = F.normalize(self.encoder.patches(self.hidden).mean(dim=2), dim=-1)
        return F.normalize(means.flatten(1), dim=-1)

    @cached_property
    def appearance(self) -> Tensor:
        """Mean and spread of each layer's normalised patches: (B, 2 · L · width)."""
        parts = []
        # One by one: a layer fits the processor's cache.
        for layer in self.encoder.patches(self.hidden).unbind(dim=1):
            tokens = F.layer_norm(layer, layer.shape[-1:])
            mean = tokens.mean(dim=1)
            spread = (tokens - mean.unsqueeze(1)).square_().mean(dim=1).sqrt()
            parts += [mean, spread]
        return F.normalize(torch.stack(parts, dim=1), dim=-1).flatten(1)


class Encodes(Protocol):
    """A model whose work on an image begins with a part that training does not change."""

    @property
    def device(self) -> torch.device:
        """The device that the model lives on."""

    def encode(self, pixels: Tensor) -> Tensor:
        """Do that part for a batch of images."""


def encode_each(
    model: Encodes, image: Callable[[int], Tensor], numbers: Iterable[int]
) -> Generator[Tensor, None, None]:
    """Give `model.encode` of one image (3, S, S) after the other, as (1, …).

    One by one: what is kept must not depend on which images were encoded together. On a processor
    side by side, each on one core: nor on how many there are.
    """

    def encode(number: int) -> Tensor:
        with torch.no_grad():  # each thread has its own word on that
            return model.encode(image(number)[None].to(model.device))

    count = torch.get_num_threads() if model.device.type == "cpu" else 1
    return side_by_side(encode, numbers, count)


class FeatureStore:
    """`store[indices]` gives `model.encode(pixels)` of those images; see `Scorer.encode`.

    With a folder it lives in a memory-mapped file there, and an interrupted pass goes on where it
    stopped; without one it lives in memory. Above `limit_bytes` nothing is kept and every access
    computes. `remedy` says what to do where the disk is full.
    """

    def __init__(
        self,
        model: Encodes,
        image: Callable[[int], Tensor],
        count: int,
        *,
        limit_bytes: float,
        folder: Path | None = None,
        remedy: str = "Free some space.",
    ) -> None:
        self._remedy = remedy
        self._model, self._image, self._count = model, image, count
        example = self._compute([0])
        self._shape = (count, *example.shape[1:])
        self.kept = 4 * math.prod(self._shape) <= limit_bytes
        self._mark = folder / "tokens.json" if folder else None
        self._tokens = self._open(folder) if self.kept else None

    def fill(self, progress: Progress) -> None:
        """Encode whatever is not there yet."""
        if self._tokens is None:
            return
        done = self._done()
        progress("encode", done, self._count, "")
        rest = range(done, self._count)
        with closing(encode_each(self._model, self._image, rest)) as encoded:
            for index, tokens in zip(rest, encoded, strict=True):
                self._tokens[index] = tokens[0].cpu().numpy()
                done = index + 1
                if done % ENCODE_AT_ONCE == 0 or done == self._count:
                    self._set_done(done)
                    progress("encode", done, self._count, "")

    def __getitem__(self, indices: list[int]) -> Tensor:
        if self._tokens is None:
            return self._compute(indices)
        return torch.from_numpy(self._tokens[indices])

    def __len__(self) -> int:
        return self._count

    def _compute(self, indices: list[int]) -> Tensor:
        device = self._model.device
        # One by one, as those that are kept.
        return torch.cat([self._model.encode(self._image(i)[None].to(device)) for i in indices])

    def _open(self, folder: Path | None) -> np.ndarray:
        if folder is None:
            self._in_memory = 0
            return np.empty(self._shape, dtype=np.float32)
        path = folder / "tokens.f32"
        size = 4 * math.prod(self._shape)
        if path.exists() and path.stat().st_size == size and self._done() > 0:
            return np.memmap(path, np.float32, "r+", shape=self._shape)
        # A mark without its tokens would pass zeros off as finished work.
        (folder / "tokens.json").unlink(missing_ok=True)
        _reserve(path, size, self._remedy)
        return np.memmap(path, np.float32, "r+", shape=self._shape)

    def _done(self) -> int:
        if self._mark is None:
            return self._in_memory
        try:
            mark = json.loads(self._mark.read_text(encoding="utf-8"))
            return int(mark["done"]) if mark["shape"] == list(self._shape) else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _set_done(self, done: int) -> None:
        if self._mark is None:
            self._in_memory = done
            return
        if isinstance(self._tokens, np.memmap):
            self._tokens.flush()
        write_atomic(self._mark, json.dumps({"shape": list(self._shape), "done": done}))


def _reserve(path: Path, size: int, remedy: str) -> None:
    """Take the space now: later, when a mapped page is written, a full disk would be a crash."""
    try:
        with path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise TrainingError(
            f"{path} needs {size / 1e9:.1f} GB for encoded images: {error.strerror}. {remedy}"
        ) from error
