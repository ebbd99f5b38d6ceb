"""PatchCore (Roth et al., CVPR 2022) on the tokens of a vision transformer.

A memory of locally averaged patch tokens of normal images, thinned out to a coreset; patches of an
image are as abnormal as they are far from it. Nothing is trained, and abnormal images are not used.

The coreset is greedy, and search in it exact, both in Euclidean distance: tokens have lengths here,
so that the search by cosine of ReCAP's memory does not serve.
"""

import math
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from recap.config import Section
from recap.encoders.vit import Encoder, quarter_layers
from recap.methods._tokens import checked_layers, layer_tokens, smooth_map
from recap.methods.base import Output, Scorer
from recap.methods.fitting import Fitted, Job
from recap.methods.images import LabelledImages
from recap.methods.recap.memory import CHUNK_ROWS


def coreset_rows(rows: Tensor, share: float, project_to: int | None, seed: int) -> Tensor:
    """Choose rows of (M, C): greedy k-centre, in a random projection if one is asked for.

    A projection to fewer dimensions nearly keeps distances (Johnson and Lindenstrauss) and makes
    each step cheaper; the rows that are remembered are not projected.
    """
    count = max(1, int(len(rows) * share))
    if count == len(rows):
        return torch.arange(count, device=rows.device)
    if project_to is not None and project_to < rows.shape[1]:
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.randn(rows.shape[1], project_to, generator=generator)
        rows = rows @ (matrix / math.sqrt(project_to)).to(rows)
    return euclidean_k_centre(rows, count)


def euclidean_k_centre(rows: Tensor, count: int) -> Tensor:
    """Choose the row nearest to the mean, then always the farthest one: (M, C) -> (k,)."""
    current = int((rows - rows.mean(dim=0)).square().sum(dim=-1).argmin())
    closest = rows.new_full((len(rows),), torch.inf)
    chosen = []
    for _ in range(count):
        chosen.append(current)
        closest = torch.minimum(closest, (rows - rows[current]).square().sum(dim=-1))
        closest[current] = -torch.inf  # never twice, however many rows are alike
        current = int(closest.argmax())
    return torch.tensor(chosen, device=rows.device)


def nearest_rows(tokens: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Euclidean distance to the nearest memory row, and which it is: (Q, C), (M, C) -> (Q,), (Q,).

    Squares of distances are expanded into products, which is fast but loses small distances
    between long vectors. So the common part of all vectors is taken off first, and the distance
    to the row that was found is computed from the difference itself.
    """
    centre = memory.mean(dim=0)
    queries = tokens - centre
    best = queries.new_full(queries.shape[:1], torch.inf)
    found = torch.zeros_like(best, dtype=torch.long)
    for start in range(0, len(memory), CHUNK_ROWS):
        chunk = memory[start : start + CHUNK_ROWS] - centre
        value, index = _farness_order(queries, chunk).min(dim=-1)
        found = torch.where(value < best, index + start, found)
        best = torch.minimum(best, value)
    return distance(tokens, memory[found]), found


def _farness_order(queries: Tensor, rows: Tensor) -> Tensor:
    """Squared distances less |q|², which is the same for all rows: (Q, C), (M, C) -> (Q, M)."""
    return rows.square().sum(dim=-1) - 2 * queries @ rows.T


def distance(left: Tensor, right: Tensor) -> Tensor:
    """Euclidean distance along the last dimension."""
    return (left - right).square().sum(dim=-1).sqrt()


def density_weight(token: Tensor, farness: Tensor, found: Tensor, memory: Tensor, b: int) -> Tensor:
    """Weight of an image's score by how crowded the memory is where its worst patch was matched.

    1 − exp d(t, m*) / Σ exp d(t, m) over the b rows m nearest to m*, itself included (Eq. 7 of
    PatchCore): small where the patch is hardly farther from m* than from rows around it.

    Args:
        token: The worst patch t of each image, (B, C).
        farness: Its distance to its nearest row m*, (B,).
        found: Which row that is, (B,).
        b: Rows of the neighbourhood; with one there is nothing to compare, and the weight is 1.
    """
    b = min(b, len(memory))
    if b < 2:
        return torch.ones_like(farness)
    centred = memory - memory.mean(dim=0)
    rows = _farness_order(centred[found], centred).topk(b, largest=False).indices
    around = distance(token.unsqueeze(1), memory[rows])  # (B, b)
    return 1 - torch.exp(farness - around.logsumexp(dim=-1))


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
        """Score an image by its largest patch distance, weighed by the memory around its match."""
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
    """Build the model without its memory."""
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
    """Name the two layers in the middle of the quarters of the depth."""
    return quarter_layers(depth)[1:3]


def average_neighbours(tokens: Tensor, side: int) -> Tensor:
    """Mean over the patches of a square around each; at the border, over those that there are."""
    if side == 1:
        return tokens
    grid = round(tokens.shape[-2] ** 0.5)
    planes = tokens.flatten(0, 1).mT.unflatten(-1, (grid, grid))  # (B * L, width, g, g)
    planes = F.avg_pool2d(planes, side, stride=1, padding=side // 2, count_include_pad=False)
    return planes.flatten(2).mT.unflatten(0, tokens.shape[:2])
