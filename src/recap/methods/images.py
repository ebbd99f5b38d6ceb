"""Labelled images that a method is fitted on: a support set, or the pools of other domains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recap.config import ReadingSettings
from recap.data.augment import COPIES, augment
from recap.training.support import SupportImage, stack_support, supervised_maps
from recap.training.zeroshot import source_masks, square_pixels
from recap.types import Sample


@dataclass(frozen=True)
class LabelledImages:
    """N images at the encoder's input size, with what is known about each."""

    pixels: Callable[[int], Tensor]
    """Position -> (3, S, S) in 0..1."""
    abnormal: Tensor  # (N,) bool
    masks: Tensor  # (N, S, S) bool
    has_mask: Tensor  # (N,) bool: whether the map of this image is supervised
    origin: Tensor  # (N,) long: which image each copy was made from
    domain: Tensor  # (N,) long
    domains: tuple[str, ...]
    """Names by `domain`; for a support set of a user's own images, the empty string."""

    def __len__(self) -> int:
        return len(self.abnormal)

    def stack(self, indices: Sequence[int]) -> Tensor:
        """Some images as one batch (B, 3, S, S)."""
        return torch.stack([self.pixels(index) for index in indices])

    def positions(self, abnormal: bool) -> list[int]:
        """Where the images of one class are."""
        return (self.abnormal == abnormal).nonzero().flatten().tolist()

    def only_normal(self) -> "LabelledImages":
        """The normal images, for methods that learn from nothing else."""
        return self._some(self.positions(abnormal=False))

    def only_supervised(self) -> "LabelledImages":
        """The images whose maps are supervised, for methods that learn from nothing else."""
        return self._some(self.has_mask.nonzero().flatten().tolist())

    def _some(self, chosen: list[int]) -> "LabelledImages":
        return LabelledImages(
            lambda index: self.pixels(chosen[index]),
            self.abnormal[chosen],
            self.masks[chosen],
            self.has_mask[chosen],
            self.origin[chosen],
            self.domain[chosen],
            self.domains,
        )

    def with_copies(self) -> "LabelledImages":
        """The benchmark's eleven fixed copies of every image, those of one image together."""
        pixels, masks = augment(self.stack(range(len(self))), self.masks)
        return self.repeated(pixels, masks, COPIES)

    def repeated(self, pixels: Tensor, masks: Tensor, copies: int) -> "LabelledImages":
        """The same images as `copies` copies each, given in order: all of image 0 first."""
        index = torch.arange(len(self)).repeat_interleave(copies)
        return LabelledImages(
            pixels.__getitem__,
            self.abnormal[index],
            masks,
            self.has_mask[index],
            self.origin[index],
            self.domain[index],
            self.domains,
        )


def support_images(support: Sequence[SupportImage], size_px: int, name: str) -> LabelledImages:
    """A support set in memory."""
    pixels, masks = stack_support(support, size_px)
    count = torch.arange(len(support))
    return LabelledImages(
        pixels.__getitem__,
        torch.tensor([item.abnormal for item in support]),
        masks,
        torch.tensor(supervised_maps(support)),
        count,
        torch.zeros_like(count),
        (name,),
    )


def source_images(
    samples: Sequence[Sample], size_px: int, reading: ReadingSettings
) -> LabelledImages:
    """Source domains, read from their files whenever they are used."""
    names = sorted({sample.domain for sample in samples})
    return LabelledImages(
        lambda index: square_pixels(samples[index], size_px, reading),
        torch.tensor([sample.abnormal for sample in samples]),
        *source_masks(samples, size_px, reading),
        torch.arange(len(samples)),
        torch.tensor([names.index(sample.domain) for sample in samples]),
        tuple(names),
    )
