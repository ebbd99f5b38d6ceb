"""DRA (Ding et al., CVPR 2022): disentangled abnormalities on a residual network.

Four heads on a network that is trained with them. Written from the publication's description.
Image labels alone are used. Its maps, from the scores of patches, are an extension.

Each head has a loss of its own; images are normal, seen abnormal, and made-up abnormal ones.
"""

import copy
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from recap.config import EncoderSettings, Section
from recap.encoders.load import seed_draws
from recap.methods._dra_backbone import RESNET_18, Backbone, load_backbone
from recap.methods._tokens import rotate
from recap.methods.base import Output, Scorer
from recap.methods.fitting import Fitted, Job
from recap.methods.images import LabelledImages
from recap.methods.training import train

NORMAL, SEEN, PSEUDO = range(3)
"""Kinds of training images."""
MARGIN = 5.0
"""Standard deviations of the prior by which the scores of deviating images must exceed it."""
DRAWS = 5000
TOP_SHARE = 0.10


class Heads(nn.Module):
    """Holistic normality, and abnormality of patches as seen, as made up, and as residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.holistic = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 1))
        self.seen, self.pseudo, self.composite = (nn.Conv2d(width, 1, 1) for _ in range(3))

    def patch_scores(self, features: Tensor, reference: Tensor) -> Tensor:
        """|score| of each patch by the heads for seen, pseudo and composite: (B, 3, h, w).

        Args:
            features: Of the images, (B, C, h, w).
            reference: Mean over the reference set, (C, h, w).
        """
        residual = features - reference
        scores = [self.seen(features), self.pseudo(features), self.composite(residual)]
        return torch.cat(scores, dim=1).abs()

    def forward(self, features: Tensor, reference: Tensor) -> Tensor:
        """Scores of images, the holistic one first: (B, 4)."""
        whole = self.holistic(features.mean(dim=(2, 3)))
        return torch.cat([whole, top_mean(self.patch_scores(features, reference))], dim=1)


def top_mean(scores: Tensor) -> Tensor:
    """Mean of the highest tenth of the patches: (B, n, h, w) -> (B, n)."""
    flat = scores.flatten(2)
    return flat.topk(max(int(flat.shape[2] * TOP_SHARE), 1), dim=2).values.mean(dim=2)


def abnormality(scores: Tensor) -> Tensor:
    """Sum up all abnormality, less the normality: (B, 4) -> (B,)."""
    return scores[:, 1:].sum(dim=1) - scores[:, 0]


def total_loss(scores: Tensor, kinds: Tensor) -> Tensor:
    """Sum of the heads' losses, each over the images that concern it: (B, 4), (B,) -> ()."""
    draws = torch.randn(DRAWS).to(scores)
    abnormal = kinds != NORMAL
    holistic, seen, pseudo, composite = scores.unbind(dim=1)
    parts = [
        (holistic, ~abnormal, torch.ones_like(abnormal)),  # here normal images deviate
        (seen, kinds == SEEN, kinds != PSEUDO),
        (pseudo, kinds == PSEUDO, kinds != SEEN),
        (composite, abnormal, torch.ones_like(abnormal)),
    ]
    losses = [deviation_loss(s[use], y[use], draws) for s, y, use in parts]
    return torch.stack(losses).sum()


def deviation_loss(scores: Tensor, deviating: Tensor, draws: Tensor) -> Tensor:
    """Scores as deviations from a prior: none, or at least `MARGIN` above: (n,), (n,) -> ()."""
    deviation = (scores - draws.mean()) / draws.std()
    return torch.where(deviating, F.relu(MARGIN - deviation), deviation.abs()).mean()


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
    """Paste a rectangle of each donor somewhere else into its image (N, 3, S, S)."""
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
        """Score images by all abnormality less the normality."""
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
    """Build the network at its start, with new heads."""
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
