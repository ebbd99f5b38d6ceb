"""MediCLIP: one linear layer per tapped layer of a frozen CLIP, learned prompts, and no real
lesion: it is trained on normal images with synthetic anomalies.

What it is trained on are variants of normal images. One of four tasks is drawn for an image, each
with probability 1/4: one of the lesions of `recap.data.lesions` with MediCLIP's own sizes, in one
place or in two; or nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Generator, Tensor, nn

from recap.config import Section
from recap.data.lesions import (
    Lesion,
    Range,
    Region,
    cut_paste,
    draw_region,
    intensity_change,
    source_deformation,
    visibly_changed,
)
from recap.methods._prompts import Place, prompts_for, text_channels, train_with_prompts
from recap.methods.base import Output, Scorer
from recap.methods.fitting import Fitted, Job
from recap.methods.images import LabelledImages
from recap.methods.recap.losses import segmentation_loss
from recap.methods.recap.maps import upsample


def identity(image: Tensor, donor: Tensor, region: Region, generator: Generator) -> Tensor:
    """Nothing: the image stays normal."""
    return image


@dataclass(frozen=True)
class Task:
    """A lesion, and half the sides of its regions as parts of the image's."""

    lesion: Lesion
    half_sides: Range


TASKS = (
    Task(cut_paste, (0.05, 0.30)),
    Task(partial(intensity_change, amplitudes=(0.4, 0.6)), (0.15, 0.40)),
    # Published as magnified by 2^0.5 to 2^2 in the middle; the exponent of the radius is one less.
    Task(partial(source_deformation, strengths=(0.41, 3.0)), (0.10, 0.30)),
    Task(identity, (0.05, 0.30)),
)
SECOND = 0.5
"""Probability of a second region."""


def synthesise(image: Tensor, donor: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Make a normal image (3, S, S) abnormal, maybe; also mark where it visibly changed (S, S)."""
    task = TASKS[int(torch.randint(len(TASKS), (), generator=generator))]
    regions = 2 if float(torch.rand((), generator=generator)) < SECOND else 1
    changed = image
    for _ in range(regions):
        region = draw_region(image, generator, task.half_sides)
        changed = task.lesion(changed, donor, region, generator)
    return changed, visibly_changed(changed, image)


def draw_variant(images: LabelledImages, index: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """`synthesise` on one of the images, the donor drawn from the normal ones of its domain."""
    fits = ~images.abnormal & (images.domain == images.domain[index])
    donors = fits.nonzero().flatten().tolist()
    others = [donor for donor in donors if donor != index] or [index]
    donor = others[int(torch.randint(len(others), (), generator=generator))]
    return synthesise(images.pixels(index), images.pixels(donor), generator)


def variant_bank(images: LabelledImages, copies: int, seed: int) -> LabelledImages:
    """Make a fixed set of variants of every normal image, those of one image together.

    Each depends on the seed and its own position alone and is made anew whenever it is asked for:
    pools of other domains do not fit into memory.
    """
    normal = images.positions(abnormal=False)

    def variant(position: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed((seed * 1_000_003 + position) % 2**63)
        return draw_variant(images, normal[position // copies], generator)

    masks = torch.stack([variant(position)[1] for position in range(copies * len(normal))])
    index = torch.tensor(normal).repeat_interleave(copies)
    return LabelledImages(
        lambda position: variant(position)[0],
        masks.flatten(1).any(1),
        masks,
        torch.ones(len(masks), dtype=torch.bool),
        images.origin[index],
        images.domain[index],
        images.domains,
        torch.arange(copies).repeat(len(normal)),
    )


LAYERS = 3
"""The last of the tapped ones: a half, three quarters and the whole of the depth."""
NORMAL = (
    "normal",
    "healthy",
    "unremarkable",
    "intact",
    "regular",
    "no findings",
    "no disease",
    "no lesion",
    "without pathology",
    "typical anatomy",
)
ABNORMAL = (
    "abnormal",
    "diseased",
    "suspicious",
    "injured",
    "irregular",
    "findings",
    "disease",
    "lesion",
    "pathology",
    "tumour",
    "atypical anatomy",
)
PLACES: tuple[Place, ...] = ("end",)

STATEMENT = (
    "MediCLIP: linear layers on a frozen CLIP encoder and two text directions from learned "
    "prompts, trained on normal images with synthetic anomalies."
)
OFFICIAL: dict[str, Any] = {
    "encoder": {
        "name": "openai/clip-vit-large-patch14",
        "input_px": 224,
        "layers": [12, 18, 24],
    },
    "options": {"epochs": 200, "variants": None, "causal": False},
}


class Options(Section):
    """Settings of MediCLIP."""

    epochs: Annotated[int, Field(ge=1)] = 50
    batch_size: Annotated[int, Field(ge=1)] = 8
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    causal: bool = True
    """Whether words of the prompts see only what precedes them, as CLIP was trained; not so in the
    published code."""
    variants: Annotated[int, Field(ge=1)] | None = 11
    """Of every normal image, made and encoded once (zero-shot: one of each). None makes a new one
    at every step, as published, and encodes it then."""


class MediCLIP(Scorer):
    """The linear layers, and how their tokens become a map."""

    text: Tensor | None  # (2, C)

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder, self.channels = encoder, text_channels(encoder)
        self.projections = nn.ModuleList(
            nn.Linear(encoder.width, self.channels) for _ in encoder.layers[-LAYERS:]
        )
        self.register_buffer("text", None)

    def encode(self, pixels: Tensor) -> Tensor:
        """Patch tokens of the layers used: (B, L, R, width)."""
        return self.encoder.taps(pixels)[:, -LAYERS:]

    def maps(self, taps: Tensor, text: Tensor) -> Tensor:
        """Softmax of the upsampled cosines, mean over the layers; of it the abnormal entry.

        (B, L, R, width), (2, C) -> (B, S, S)
        """
        contrast = text[1] - text[0]
        layers = zip(taps.unbind(1), self.projections, strict=True)
        margins = [F.normalize(project(tokens), dim=-1) @ contrast for tokens, project in layers]
        mean = torch.stack(margins).mean(0)  # (B, R)
        encoder = self.encoder
        return upsample(mean, encoder.input_px, encoder.patch_px, "corners").sigmoid()

    def forward(self, pixels: Tensor) -> Output:
        """Score a batch of 0..1 pixels (B, 3, S, S): the highest value of the map."""
        assert self.text is not None
        maps = self.maps(self.encode(pixels), self.text)
        return Output(maps.flatten(1).amax(1), maps)


Batch = Callable[[list[int]], tuple[Tensor, Tensor]]
"""Positions -> taps (B, L, R, width) and masks (B, S, S)."""


def build(encoder: Any, options: Options) -> MediCLIP:
    """Build the model at its start."""
    return MediCLIP(encoder)


def fit(model: MediCLIP, images: LabelledImages, job: Job) -> Fitted:
    """Train linear layers and prompts together; abnormal images are not looked at."""
    learned = prompts_for(job, model, (NORMAL, ABNORMAL), PLACES)
    made = _fixed if job.options.variants else _fresh
    batch, count = made(model, images, job)

    def loss(indices: list[int], text: Tensor) -> Tensor:
        taps, masks = batch(indices)
        maps = model.maps(taps.to(model.device), text)
        return segmentation_loss(maps, masks.to(model.device)).mean()

    mean = train_with_prompts(model, learned, loss, count, job)
    return Fitted({"loss": mean})


def _fixed(model: MediCLIP, images: LabelledImages, job: Job) -> tuple[Batch, int]:
    copies = 1 if job.zero_shot else job.options.variants
    bank = variant_bank(images, copies, job.settings.seed)
    store = job.encoded(model, bank)
    return lambda indices: (store[indices], bank.masks[indices]), len(bank)


def _fresh(model: MediCLIP, images: LabelledImages, job: Job) -> tuple[Batch, int]:
    normal = images.positions(abnormal=False)

    def batch(indices: list[int]) -> tuple[Tensor, Tensor]:
        # Drawn from torch's own generator, which the training loop seeds for every epoch.
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        pairs = [draw_variant(images, normal[index], generator) for index in indices]
        pixels, masks = (torch.stack(part) for part in zip(*pairs, strict=True))
        # Never seen again, so never kept: not `taps`.
        layers = model.encoder.layers[-LAYERS:]
        tokens = model.encoder.compute(pixels.to(model.device), layers)
        return model.encoder.patches(tokens).contiguous(), masks

    return batch, len(normal)
