"""PatchCore (Roth et al., CVPR 2022) on the tokens of a vision transformer.

A memory of locally averaged patch tokens of normal images, thinned out to a coreset; patches of an
image are as abnormal as they are far from it. Nothing is trained, and abnormal images are not used.
"""

from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from recap.config import Section
from recap.encoders.vit import Encoder, quarter_layers
from recap.methods.base import Output, Scorer
from recap.methods.fitting import Fitted, Job
from recap.methods.images import LabelledImages
from recap.methods.layer_tokens import checked_layers, layer_tokens
from recap.methods.patchcore_memory import coreset_rows, density_weight, nearest_rows
from recap.methods.smoothing import smooth_map

STATEMENT = (
    "PatchCore: distances of the encoder's own patch tokens, averaged over their neighbours, to a "
    "coreset of those of the normal images. Nothing was trained; abnormal images were not used."
)
OFFICIAL: dict[str, Any] = {"encoder": {"input_px": 224}}


class Options(Section):
    """PatchCore's own settings."""

    layers: tuple[int, ...] | None = None
    """Blocks whose tokens are joined, counted from 1; none means those at half and three quarters
    of the depth, for the second and third stage of a residual network."""
    neighbourhood: Literal[1, 3, 5, 7] = 3
    """Side of the square of patches that a token is averaged over."""
    tokens: Literal["raw", "unit"] = "raw"
    """`raw`: as the blocks leave them, which is the published distance. `unit`: every token scaled
    to length 1 first, so that layers with long tokens do not outweigh the others."""
    coreset: Annotated[float, Field(gt=0, le=1)] = 0.10
    """Share of the patches that is remembered; 1 remembers all."""
    projection: Annotated[int, Field(ge=1)] | None = 128
    """Dimensions in which the coreset is chosen; none means all."""
    neighbours: Annotated[int, Field(ge=1)] = 9
    """Memory rows that weigh the image's score; 1 leaves it as it is."""
    sigma_px: Annotated[float, Field(ge=0)] = 4.0
    """Smoothing of the maps; 0 is none."""


class PatchCore(Scorer):
    """A coreset of normal patches, and distances to it."""

    source = "memory"
    mirrored = (-1,)

    memory: Tensor | None

    def __init__(self, encoder: Encoder, options: Options) -> None:
        super().__init__()
        self.encoder, self.options = encoder, options
        given = middle_layers(encoder.depth) if options.layers is None else options.layers
        self.layers = checked_layers(given, encoder)
        self.register_buffer("memory", None)

    def encode(self, pixels: Tensor) -> Tensor:
        """Locally averaged tokens of the layers, joined: (B, 3, S, S) -> (B, R, L * width)."""
        tokens = layer_tokens(self.encoder, pixels, self.layers)
        if self.options.tokens == "unit":
            tokens = F.normalize(tokens, dim=-1)
        return average_neighbours(tokens, self.options.neighbourhood).transpose(1, 2).flatten(2)

    def distances(self, tokens: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Distance of each patch to its nearest row, and which it is: (B, R, C) -> two (B, R)."""
        farness, found = nearest_rows(tokens.flatten(0, 1), memory)
        return farness.view(tokens.shape[:2]), found.view(tokens.shape[:2])

    def map_of(self, farness: Tensor) -> Tensor:
        """Distances of patches (B, R) -> map (B, S, S)."""
        return smooth_map(farness, self.encoder, self.options.sigma_px)

    def forward(self, pixels: Tensor) -> Output:
        """The score is the largest distance of a patch, weighed by the memory around its match."""
        assert self.memory is not None, "fit comes first"
        tokens = self.encode(pixels)
        farness, found = self.distances(tokens, self.memory)
        worst = farness.argmax(dim=1, keepdim=True)  # (B, 1)
        own = worst.unsqueeze(-1).expand(-1, -1, tokens.shape[-1])
        token = tokens.gather(1, own).squeeze(1)
        score, match = farness.gather(1, worst).squeeze(1), found.gather(1, worst).squeeze(1)
        weight = density_weight(token, score, match, self.memory, self.options.neighbours)
        return Output(score * weight, self.map_of(farness))


def build(encoder: Encoder, options: Options) -> PatchCore:
    """The model without its memory."""
    return PatchCore(encoder, options)


@torch.no_grad()
def fit(model: PatchCore, images: LabelledImages, job: Job) -> Fitted:
    """Remember a coreset of the normal images' patches."""
    normal = images.only_normal()
    tokens = job.encoded(model, normal)[list(range(len(normal)))].to(model.device)  # (K, R, C)
    rows, options = tokens.flatten(0, 1), model.options
    chosen = coreset_rows(rows, options.coreset, options.projection, job.settings.seed)
    model.memory = rows[chosen].clone()
    model.owner = chosen // tokens.shape[1]
    return Fitted()


def middle_layers(depth: int) -> tuple[int, ...]:
    """The two in the middle of the quarters of the depth."""
    return quarter_layers(depth)[1:3]


def average_neighbours(tokens: Tensor, side: int) -> Tensor:
    """Mean over the patches of a square around each; at the border, over those that there are."""
    if side == 1:
        return tokens
    grid = round(tokens.shape[-2] ** 0.5)
    planes = tokens.flatten(0, 1).mT.unflatten(-1, (grid, grid))  # (B * L, width, g, g)
    planes = F.avg_pool2d(planes, side, stride=1, padding=side // 2, count_include_pad=False)
    return planes.flatten(2).mT.unflatten(0, tokens.shape[:2])
