"""A head that lesions made up on normal images teach, where no mask of a real one was given."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recap.config import Settings
from recap.methods.recap.head import ReCAP
from recap.progress import Progress
from recap.training.checkpoint import Checkpoint
from recap.training.head import copies_of, train_head, training_set
from recap.training.made_up import make_lesions
from recap.training.prefix_store import PrefixTokens

MOST_TEACHING = 4
"""Images that get lesions, spread over all that are given. More take longer, and what adapters then
learn is made-up lesions rather than lesions: scores of real ones get worse."""


def copy_numbers(images: Sequence[int], settings: Settings) -> list[int]:
    """Where all copies of some images stand."""
    copies = copies_of(settings)
    return [image * copies + copy for image in images for copy in range(copies)]


@dataclass(frozen=True)
class Lesions:
    """Copies of normal images with a lesion on each."""

    made_on: list[int]
    """Which of the copies they are of."""
    pixels: Tensor  # (N, 3, S, S)
    masks: Tensor  # (N, S, S) bool


def lesions_on(copies: Tensor, numbers: list[int], settings: Settings) -> Lesions:
    """A lesion on each of some copies (…, 3, S, S) of normal images."""
    pixels, masks = make_lesions(copies[numbers], copies_of(settings), settings.seed)
    return Lesions(numbers, pixels, masks)


def train_on_lesions(
    model: ReCAP,
    tokens: PrefixTokens,
    masks: Tensor,
    progress: Progress,
    checkpoint: Checkpoint | None,
) -> dict[str, float]:
    """Train on the copies of normal images and, after them, the same with lesions.

    `masks` (N, S, S) are those of the lesions. Returns the last losses.
    """
    images = len(masks) // copies_of(model.settings)
    both = torch.cat([torch.zeros_like(masks), masks])
    abnormal = [False] * images + [True] * images
    data = training_set(tokens, both, abnormal, [True] * (2 * images), model.settings)
    data = replace(data, origin=data.origin % images)  # a lesion is made on a normal image
    return train_head(model, data, progress, checkpoint)
