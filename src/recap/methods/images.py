"""Labelled images that a method is fitted on: a support set, or the pools of other domains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from recap.config import ReadingSettings
from recap.data.augment import COPIES, augment
from recap.data.benchmark import Domain
from recap.data.support import SupportImage, stack_support, supervised_maps
from recap.data.supports import support_hashes
from recap.errors import InputError
from recap.io import read_image
from recap.io.raster import read_mask_of
from recap.io.resize import SquareResize
from recap.io.window import parse_window
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
    copy: Tensor  # (N,) long: which copy of its image; 0 is the image itself

    def __len__(self) -> int:
        return len(self.abnormal)

    def stack(self, indices: Sequence[int]) -> Tensor:
        """Some images as one batch (B, 3, S, S)."""
        return torch.stack([self.pixels(index) for index in indices])

    def positions(self, abnormal: bool) -> list[int]:
        """Positions of the images of one class."""
        return (self.abnormal == abnormal).nonzero().flatten().tolist()

    def only_normal(self) -> "LabelledImages":
        """Select the normal images, for methods that learn from nothing else."""
        return self.some(self.positions(abnormal=False))

    def only_supervised(self) -> "LabelledImages":
        """Select the images whose maps are supervised, for methods that learn from nothing else."""
        return self.some(self.has_mask.nonzero().flatten().tolist())

    def some(self, chosen: Sequence[int], device: torch.device | None = None) -> "LabelledImages":
        """Some of the images, in that order; what is known of them, on a device."""
        numbers = list(chosen)
        known = ("abnormal", "masks", "has_mask", "origin", "domain", "copy")
        tensors = {name: getattr(self, name)[numbers] for name in known}
        if device is not None:
            tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        return replace(self, pixels=lambda index: self.pixels(numbers[index]), **tensors)

    def with_copies(self) -> "LabelledImages":
        """Make the benchmark's eleven fixed copies of every image, those of one image together."""
        pixels, masks = augment(self.stack(range(len(self))), self.masks)
        return self.repeated(pixels, masks, COPIES)

    def repeated(self, pixels: Tensor, masks: Tensor, copies: int) -> "LabelledImages":
        """Repeat the images as `copies` copies each, given in order: all of image 0 first."""
        index = torch.arange(len(self)).repeat_interleave(copies)
        return replace(
            self,
            pixels=pixels.__getitem__,
            abnormal=self.abnormal[index],
            masks=masks,
            has_mask=self.has_mask[index],
            origin=self.origin[index],
            domain=self.domain[index],
            copy=torch.arange(copies).repeat(len(self)),
        )


def support_images(support: Sequence[SupportImage], size_px: int, name: str) -> LabelledImages:
    """Hold a support set in memory."""
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
        torch.zeros_like(count),
    )


def source_images(
    samples: Sequence[Sample], size_px: int, reading: ReadingSettings
) -> LabelledImages:
    """Source domains, read from their files whenever they are used."""
    names = sorted({sample.domain for sample in samples})
    count = torch.arange(len(samples))
    return LabelledImages(
        lambda index: square_pixels(samples[index], size_px, reading),
        torch.tensor([sample.abnormal for sample in samples]),
        # Before the encoder runs: a mask that cannot be read is told at once.
        *source_masks(samples, size_px, reading),
        count,
        torch.tensor([names.index(sample.domain) for sample in samples]),
        tuple(names),
        torch.zeros_like(count),
    )


def leave_one_out(domains: Sequence[Domain], target: str) -> list[Domain]:
    """List the sources for a held-out target: all other domains."""
    names = [domain.name for domain in domains]
    if target not in names:
        raise InputError(f"There is no domain '{target}'. Found: {', '.join(names) or 'none'}.")
    sources = [domain for domain in domains if domain.name != target]
    if not sources:
        raise InputError(f"'{target}' is the only domain. Zero-shot needs at least one other.")
    return sources


def source_samples(sources: Sequence[Domain], split: str) -> list[Sample]:
    """List all labelled images of the sources; both classes must be there."""
    samples = [s for d in sources for s in (d.pool() if split == "pool" else d.test())]
    for abnormal, word in ((False, "normal"), (True, "abnormal")):
        if not any(sample.abnormal == abnormal for sample in samples):
            raise InputError(f"The source domains have no {word} images.")
    return samples


def source_records(samples: Sequence[Sample]) -> list[dict[str, str | None]]:
    """Record of each source image what the bundle keeps: its domain too."""
    records = support_hashes(samples)
    return [{**r, "domain": s.domain} for r, s in zip(records, samples, strict=True)]


def source_masks(
    samples: Sequence[Sample], size_px: int, reading: ReadingSettings
) -> tuple[Tensor, Tensor]:
    """Masks at the encoder's input size (N, S, S), and whose maps they supervise (N,).

    That is abnormal images with a mask that marks something, and the normal ones of their domains.
    An abnormal image without one is no image without a lesion: its map is left alone.
    """
    parse_window(reading.window)  # pictures have no need of it, but what is scored later may
    masks = torch.stack([square_mask(sample, size_px, reading) for sample in samples])
    marked = masks.flatten(1).any(dim=1)
    if not marked.any() and any(sample.mask for sample in samples):
        raise InputError("The masks of the source domains mark nothing. Look at one of them.")
    domains = {
        sample.domain for sample, there in zip(samples, marked.tolist(), strict=True) if there
    }
    healthy = [not sample.abnormal and sample.domain in domains for sample in samples]
    return masks, marked | torch.tensor(healthy)


def square_pixels(sample: Sample, size_px: int, reading: ReadingSettings) -> Tensor:
    """Read a sample's pixels at the encoder's input size: (3, S, S) in 0..1."""
    image = read_image(sample.path, reading)
    square = SquareResize(image.size_hw, size_px).apply(image.pixels)
    return torch.from_numpy(square).permute(2, 0, 1)


def square_mask(sample: Sample, size_px: int, reading: ReadingSettings) -> Tensor:
    """Read a sample's mask at the encoder's input size, empty where it has none: (S, S) bool."""
    if sample.mask is None:
        return torch.zeros(size_px, size_px, dtype=torch.bool)
    mask = read_mask_of(read_image(sample.path, reading), sample.mask)
    square = SquareResize((mask.shape[0], mask.shape[1]), size_px).apply_mask(mask)
    return torch.from_numpy(np.ascontiguousarray(square))
