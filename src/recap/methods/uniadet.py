"""UniADet: a pair of class weights for every task and level, and nothing else that is learned.

No code was released. Equations follow what its authors publish about it; what they leave open is
said in docs/peers/uniadet.md.
"""

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from recap.config import Section
from recap.encoders.vit import Encoder
from recap.methods.base import Output, Scorer
from recap.methods.features import FeatureStore, encode_each
from recap.methods.fitting import Fitted, Job
from recap.methods.images import LabelledImages
from recap.methods.recap.losses import segmentation_loss
from recap.methods.recap.maps import upsample
from recap.methods.recap.memory import build_memory, nearest_distance
from recap.methods.training import train

STATEMENT = (
    "UniADet: class weights per task and level, trained on labelled images; where those are of "
    "the target itself, its maps are fused with a memory of the normal ones."
)
OFFICIAL: dict[str, Any] = {
    "encoder": {"name": "facebook/dinov2-with-registers-large", "input_px": 518},
    "options": {"epochs": 15},
}

FEW_SHOT_EPOCHS, ZERO_SHOT_EPOCHS = 50, 15
WEIGHT_START = 0.02
BETAS = (0.5, 0.999)
IMAGE, PIXEL = 0, 1
"""The tasks, in the order of the weights."""

Depth = Annotated[float, Field(gt=0, le=1)]


class Options(Section):
    """Settings of UniADet."""

    epochs: Annotated[int, Field(ge=1)] | None = None
    """None means 50 few-shot and 15 zero-shot."""
    batch_size: Annotated[int, Field(ge=1)] = 8
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    depths: Annotated[tuple[Depth, ...], Field(min_length=1)] = (0.5, 0.625, 0.75, 0.875, 1.0)
    """Tapped levels as fractions of the encoder's depth; `encoder.layers` plays no part."""
    temperature: Annotated[float, Field(gt=0)] = 0.07
    map_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the map's maximum in the image score."""
    memory_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Few-shot: share of the distance to normal patches in the map; 0 keeps no memory."""


class UniADet(Scorer):
    """Decoupled class weights on a frozen encoder."""

    memory: Tensor | None

    def __init__(self, encoder: Encoder, options: Options) -> None:
        super().__init__()
        self.encoder = encoder
        self.options = options
        self.levels = tapped_levels(encoder.depth, options.depths)
        shape = (len(self.levels), 2, 2, encoder.width)  # level, task, class, C
        self.weights = nn.Parameter(WEIGHT_START * torch.randn(shape))
        self.register_buffer("memory", None)  # (L, M, C)

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Unit tokens of every level: (B, L, 1 + R, C), the whole image's first."""
        encoder = self.encoder
        tokens = encoder.final_norm(encoder.hidden(pixels, self.levels))  # (B, L, T, C)
        patches = tokens[:, :, encoder.prefix_tokens :]
        # An encoder without a class token has the mean of its patches for the image.
        whole = tokens[:, :, :1] if encoder.prefix_tokens else patches.mean(dim=2, keepdim=True)
        return F.normalize(torch.cat([whole, patches], dim=2), dim=-1)

    def margins(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(cos(t, w_abnormal) − cos(t, w_normal)) / τ: of images (B, L), of patches (B, L, R).

        The softmax over the two classes is the sigmoid of this difference.
        """
        normal, abnormal = F.normalize(self.weights, dim=-1).unbind(dim=2)  # (L, 2, C) each
        direction = (abnormal - normal) / self.options.temperature
        image = torch.einsum("blc,lc->bl", tokens[:, :, 0], direction[:, IMAGE])
        patches = torch.einsum("blrc,lc->blr", tokens[:, :, 1:], direction[:, PIXEL])
        return image, patches

    def to_pixels(self, values: Tensor) -> Tensor:
        """Patch values (..., R) -> maps (..., S, S)."""
        return upsample(values, self.encoder.input_px, self.encoder.patch_px, "centres")

    def forward(self, pixels: Tensor) -> Output:
        """Score a batch of 0..1 pixels (B, 3, S, S)."""
        tokens = self.encode(pixels)
        image, patches = self.margins(tokens)
        maps = self.to_pixels(patches).sigmoid().mean(dim=1)
        if self.memory is not None:
            share = self.options.memory_weight
            maps = (1 - share) * maps + share * self.to_pixels(self._distance(tokens, self.memory))
        share = self.options.map_weight
        score = (1 - share) * image.sigmoid().mean(dim=1) + share * maps.flatten(1).amax(dim=1)
        return Output(score, maps)

    def loss(self, tokens: Tensor, abnormal: Tensor, masks: Tensor, has_mask: Tensor) -> Tensor:
        """Cross-entropy of images + focal and Dice of maps, every level by itself."""
        image, patches = self.margins(tokens)
        labels = abnormal.to(image.dtype)[:, None].expand_as(image)
        total = F.binary_cross_entropy_with_logits(image, labels)
        if has_mask.any():
            maps = self.to_pixels(patches[has_mask]).sigmoid()
            pixel = segmentation_loss(maps, masks[has_mask, None]).mean(dim=1)
            total = total + pixel.sum() / len(tokens)
        return total

    def _distance(self, tokens: Tensor, memory: Tensor) -> Tensor:
        levels = zip(tokens[:, :, 1:].unbind(dim=1), memory, strict=True)
        return torch.stack([nearest_distance(t, rows) for t, rows in levels]).mean(dim=0)


def tapped_levels(depth: int, fractions: tuple[float, ...]) -> tuple[int, ...]:
    """Block numbers, counted from 1 and each once."""
    return tuple(sorted({max(1, round(depth * fraction)) for fraction in fractions}))


def build(encoder: Encoder, options: Options) -> UniADet:
    """Build the model at its start."""
    return UniADet(encoder, options)


def fit(model: UniADet, images: LabelledImages, job: Job) -> Fitted:
    """Train the weights on frozen tokens; remember the normal images of a target."""
    given = images if job.zero_shot else images.with_copies()
    mean = _train(model, given, job.encoded(model, given), job)
    if not given.has_mask.any():
        # Never trained: a map of random weights would be worse than one that says nothing.
        model.weights.data[:, PIXEL] = 0
    if job.zero_shot or model.options.memory_weight == 0:
        return Fitted({"loss": mean})
    model.owner = _remember(model, images)
    return Fitted({"loss": mean})


def _remember(model: UniADet, images: LabelledImages) -> Tensor:
    """Keep the tokens of the normal images; returns which image each row comes from."""
    normals = images.positions(abnormal=False)
    encoded = encode_each(model, images.pixels, normals)
    tokens = torch.cat([one[:, :, 1:] for one in encoded])  # (K, L, R, C)
    model.memory = torch.stack([build_memory(level) for level in tokens.unbind(dim=1)])
    return images.origin[normals].repeat_interleave(tokens.shape[2])


def _train(model: UniADet, images: LabelledImages, tokens: FeatureStore, job: Job) -> float:
    options, device = model.options, model.device
    labels = (images.abnormal, images.masks, images.has_mask)

    def loss(indices: list[int]) -> Tensor:
        return model.loss(
            tokens[indices].to(device), *(label[indices].to(device) for label in labels)
        )

    return train(
        model,
        loss,
        torch.optim.Adam([model.weights], lr=options.learning_rate, betas=BETAS),
        len(images),
        job,
        epochs=options.epochs or (ZERO_SHOT_EPOCHS if job.zero_shot else FEW_SHOT_EPOCHS),
    )
