"""Training images of DRA: normal, seen abnormal, and made-up abnormal ones."""

import math

import torch
from torch import Tensor

from recap.methods.dra_heads import NORMAL, PSEUDO, SEEN
from recap.methods.images import LabelledImages
from recap.methods.rotation import rotate

AREA = (0.02, 0.15)
"""Part of the image that a pasted rectangle covers."""
ASPECT = (1 / 3, 3.0)


class Sampler:
    """Draws batches from the global generator, which the training loop seeds."""

    def __init__(self, images: LabelledImages, rotation_deg: float) -> None:
        self._images, self._rotation = images, rotation_deg
        self._normal, self._seen = images.positions(False), images.positions(True)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Half normal, a quarter seen, a quarter made up: pixels (B, 3, S, S), kinds (B,)."""
        seen = max(1, size // 4)
        normal = self._draw(self._normal, max(1, size - 2 * seen))
        made = cut_and_paste(self._draw(self._normal, seen), self._draw(self._normal, seen))
        pixels = torch.cat([normal, self._draw(self._seen, seen), made])
        kinds = [NORMAL] * len(normal) + [SEEN] * seen + [PSEUDO] * seen
        return pixels, torch.tensor(kinds)

    def references(self, count: int) -> Tensor:
        """Different normal images (n, 3, S, S), all of them if they are fewer."""
        order = torch.randperm(len(self._normal))[:count].tolist()
        return self._images.stack([self._normal[i] for i in order])

    def _draw(self, positions: list[int], count: int) -> Tensor:
        chosen = torch.randint(len(positions), (count,)).tolist()
        pixels = self._images.stack([positions[i] for i in chosen])
        if self._rotation == 0:
            return pixels
        angles = (self._rotation * (2 * torch.rand(count) - 1)).tolist()
        return torch.stack([rotate(p, a) for p, a in zip(pixels, angles, strict=True)])


def cut_and_paste(images: Tensor, donors: Tensor) -> Tensor:
    """A rectangle out of each donor, put somewhere else into its image (N, 3, S, S)."""
    pasted = images.clone()
    for image, donor in zip(pasted, donors, strict=True):
        height, width = rectangle(images.shape[-1])
        top, left, from_top, from_left = (
            int(torch.randint(images.shape[-1] - side + 1, ()))
            for side in (height, width, height, width)
        )
        piece = donor[:, from_top : from_top + height, from_left : from_left + width]
        image[:, top : top + height, left : left + width] = piece
    return pasted


def rectangle(size_px: int) -> tuple[int, int]:
    """Height and width of a random rectangle in a square."""
    share = AREA[0] + (AREA[1] - AREA[0]) * float(torch.rand(()))
    low, high = math.log(ASPECT[0]), math.log(ASPECT[1])
    aspect = math.exp(low + (high - low) * float(torch.rand(())))
    sides = (math.sqrt(share * aspect), math.sqrt(share / aspect))
    height, width = (min(size_px, max(1, round(side * size_px))) for side in sides)
    return height, width
