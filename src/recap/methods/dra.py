"""DRA (Ding et al., CVPR 2022): disentangled abnormalities on a residual network.

Four heads on a network that is trained with them. Written from the publication's description.
Image labels alone are used. Its maps, from the scores of patches, are an extension.
"""

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from recap.config import EncoderSettings, Section
from recap.encoders.load import seed_draws
from recap.methods.base import Output, Scorer
from recap.methods.dra_backbone import RESNET_18, Backbone, load_backbone
from recap.methods.dra_heads import Heads, abnormality, total_loss
from recap.methods.dra_images import Sampler
from recap.methods.fitting import Fitted, Job
from recap.methods.images import LabelledImages
from recap.methods.training import train

STATEMENT = (
    "DRA: a residual network and four heads, trained on normal, abnormal and made-up abnormal "
    "images. Maps are an extension: the scores of its patches."
)
OFFICIAL: dict[str, Any] = {
    "encoder": {"name": RESNET_18, "input_px": 448},
    "options": {"steps": 20, "batch_size": 48, "copies": False, "rotation_deg": 180.0},
}
STRIDE = 32
"""Pixels from one patch to the next in a residual network's last feature map."""
LEARNING_RATE, WEIGHT_DECAY, DECAY_EPOCHS = 2e-4, 1e-5, 10


class Options(Section):
    """DRA's own settings."""

    epochs: Annotated[int, Field(ge=1)] = 30
    """The learning rate falls to a tenth after every ten."""
    steps: Annotated[int, Field(ge=1)] = 4
    """Batches of an epoch."""
    batch_size: Annotated[int, Field(ge=4)] = 16
    """Half of it normal, a quarter seen and a quarter made-up abnormal images."""
    references: Annotated[int, Field(ge=1)] = 5
    """Normal images whose mean features residuals are taken from."""
    copies: bool = True
    """Few-shot: train on eleven fixed copies of every support image."""
    rotation_deg: Annotated[float, Field(ge=0, le=180)] = 0.0
    """Training images are turned by up to this angle either way."""


def load_encoder(settings: EncoderSettings, seed: int) -> Backbone:
    """DRA's own backbone."""
    return load_backbone(settings, seed)


class DRA(Scorer):
    """A residual network at two scales with DRA's heads."""

    reference_whole: Tensor | None
    reference_half: Tensor | None

    def __init__(self, encoder: Backbone, options: Options) -> None:
        super().__init__()
        self.encoder, self.options = encoder, options
        self.network = copy.deepcopy(encoder.start).requires_grad_(True)
        self.heads = Heads(self.network.config.hidden_sizes[-1])
        self.register_buffer("reference_whole", None)
        self.register_buffer("reference_half", None)

    def train(self, mode: bool = True) -> Self:
        """Batch norms keep their statistics: a score must not depend on what else was in a batch,
        and a few images would not do for better ones."""
        super().train(mode)
        for module in self.network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    def features(self, pixels: Tensor) -> list[Tensor]:
        """Last feature maps of the image and of the image at half its size: (B, C, h, w) each."""
        whole = (pixels - self.encoder.mean) / self.encoder.std
        half = F.interpolate(whole, scale_factor=0.5, mode="bilinear", antialias=True)
        return [self.network(scale).last_hidden_state for scale in (whole, half)]

    def scores(self, features: Sequence[Tensor], references: Sequence[Tensor]) -> Tensor:
        """Scores of the four heads, the mean over the scales: (B, 4)."""
        both = [self.heads(f, r) for f, r in zip(features, references, strict=True)]
        return torch.stack(both).mean(dim=0)

    def loss(self, pixels: Tensor, kinds: Tensor, references: Tensor) -> Tensor:
        """Loss of a batch (B, 3, S, S), with residuals from other images (n, 3, S, S)."""
        together = self.features(torch.cat([pixels, references]))
        batch = [f[: len(pixels)] for f in together]
        return total_loss(self.scores(batch, [f[len(pixels) :].mean(0) for f in together]), kinds)

    def forward(self, pixels: Tensor) -> Output:
        """The score is all abnormality less the normality."""
        assert self.reference_whole is not None, "fit comes first"
        assert self.reference_half is not None, "fit comes first"
        features, references = self.features(pixels), (self.reference_whole, self.reference_half)
        maps = [
            to_pixels(self.heads.patch_scores(f, r).sum(dim=1), pixels.shape[-1], scale)
            for scale, (f, r) in enumerate(zip(features, references, strict=True))
        ]
        score = abnormality(self.scores(features, references))
        return Output(score, torch.stack(maps).mean(dim=0))


def build(encoder: Backbone, options: Options) -> DRA:
    """The network at its start, with new heads."""
    return DRA(encoder, options)


def fit(model: DRA, images: LabelledImages, job: Job) -> Fitted:
    """Train the network and its heads, then take the reference set's features."""
    options = model.options
    copies = images.with_copies() if options.copies and not job.zero_shot else images
    sampler = Sampler(copies, options.rotation_deg)

    def loss(indices: list[int]) -> Tensor:
        pixels, kinds = sampler.batch(len(indices))
        references = sampler.references(options.references)
        device = model.device
        return model.loss(pixels.to(device), kinds.to(device), references.to(device))

    last = train(
        model,
        loss,
        torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY),
        options.steps * options.batch_size,
        job,
        epochs=options.epochs,
        schedule=lambda start, epoch: start * 0.1 ** (epoch // DECAY_EPOCHS),
    )
    remember(model, images, job.settings.seed)
    return Fitted({"loss": last})


@torch.no_grad()
def remember(model: DRA, images: LabelledImages, seed: int) -> None:
    """Keep the mean features of the reference set, as the trained network sees it."""
    # Fits that went on and those that did not draw the same images.
    seed_draws(seed, model.device)
    chosen = Sampler(images, rotation_deg=0).references(model.options.references)
    each = [model.features(image[None].to(model.device)) for image in chosen]
    whole, half = (torch.cat(scale).mean(dim=0) for scale in zip(*each, strict=True))
    model.reference_whole, model.reference_half = whole, half


def to_pixels(values: Tensor, size_px: int, halvings: int) -> Tensor:
    """Values of patches (B, h, w) -> map (B, S, S), bilinear."""
    matrix = interpolation(values.shape[-1], size_px, halvings).to(values)
    return matrix @ values @ matrix.T


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # a cached inference tensor could not serve training later
def interpolation(cells: int, size_px: int, halvings: int) -> Tensor:
    """(S, cells) weights: row p says which patches pixel p lies between.

    Every stride of a residual network keeps its first pixel, so patch i stands at pixel 32·i of
    the input, not in the middle of 32 pixels of its own.
    """
    pixel = torch.arange(size_px, dtype=torch.float64)
    position = ((pixel + 0.5) / 2**halvings - 0.5) / STRIDE
    distance = (position.clamp(0, cells - 1)[:, None] - torch.arange(cells)).abs()
    return (1 - distance).clamp_min(0).float()
