"""VisualAD: two learned tokens that run through the frozen encoder beside the image's own.

Layers are compared with what became of the two tokens at the end. Nothing of it can be encoded
ahead: the tokens take part in every block, and the gradient comes back through all of them.

What a layer's patches tell the two tokens goes through spatial cross-attention.
"""

import copy
import math
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from recap.config import Section
from recap.encoders.vit import Encoder
from recap.methods._tokens import gaussian_smooth
from recap.methods.base import Output, Scorer
from recap.methods.fitting import Fitted, Job
from recap.methods.images import LabelledImages
from recap.methods.recap.losses import segmentation_loss
from recap.methods.training import cosine_to, train

ANCHORS = 4
POSITION_ROWS = 1536
"""Rows of the published position table, whatever the grid; a larger grid gets its own number."""
RESIDUAL_START = 0.01
SMALL = 0.02


class SpatialCrossAttention(nn.Module):
    """A few learned queries look at the patches; each token takes of them what its gate lets in.

    aₘ = Σᵣ softmaxᵣ(qₘ · kᵣ / √C) vᵣ with q = LN(W_q anchor), k = LN(W_k (patch + position)) and
    v = W_v patch; then token + s · W_o Σₘ sigmoid(gate(token))ₘ aₘ.
    """

    def __init__(self, width: int, patches: int, dropout: float) -> None:
        super().__init__()
        self.anchors = nn.Parameter(SMALL * torch.randn(ANCHORS, width))
        self.positions = nn.Parameter(SMALL * torch.randn(max(POSITION_ROWS, patches), width))
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.query_norm, self.key_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.gate = nn.Linear(width, ANCHORS)
        self.out = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.full((1,), RESIDUAL_START))
        self.dropout = nn.Dropout(dropout)
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, tokens: Tensor, patches: Tensor) -> Tensor:
        """Tokens (B, 2, C) that know of the patches (B, R, C) of one layer."""
        queries = self.query_norm(self.query(self.anchors))  # (M, C)
        keys = self.key_norm(self.key(patches + self.positions[: patches.shape[1]]))
        weights = (queries @ keys.mT / patches.shape[-1] ** 0.5).softmax(dim=-1)  # (B, M, R)
        # Each token drops weights of its own. Values are linear in the patches, so averaging first
        # saves most of their projections.
        own = self.dropout(weights.repeat(1, tokens.shape[1], 1))  # (B, 2 M, R)
        seen = self.value(own @ patches).unflatten(1, (tokens.shape[1], ANCHORS))  # (B, 2, M, C)
        gates = self.gate(tokens).sigmoid()  # (B, 2, M)
        gathered = self.out(torch.einsum("btm,btmc->btc", gates, seen))  # (B, 2, C)
        return tokens + self.scale * self.dropout(gathered)


STATEMENT = (
    "VisualAD: two tokens, normal and abnormal, trained through the frozen encoder; patches are "
    "compared with both. There is no memory."
)
OFFICIAL: dict[str, Any] = {"encoder": {"name": "clip-vit-l14-336", "input_px": 518}}

FEW_SHOT_STEPS, ZERO_SHOT_EPOCHS = 440, 2
"""Its published runs take about 430 steps: two epochs of MVTec's 1,725 test images, by eights."""
TOKEN_START = 0.1
HEAD_RATE = 0.1
FINAL_RATE = 0.1
"""One lowest rate for all, a tenth of the tokens': where the heads start and so remain."""
MARGIN = -0.5
ABNORMAL, NORMAL = 0, 1
"""Order of the two tokens, as published."""


class Options(Section):
    """Settings of VisualAD."""

    epochs: Annotated[int, Field(ge=1)] | None = None
    """None means 2 zero-shot, and few-shot as many as make 440 steps."""
    batch_size: Annotated[int, Field(ge=1)] = 8
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Of the two tokens; everything else learns at a tenth of it."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """Longest gradient of each of the two tokens."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    top_k: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of the pixels whose mean is the image score."""
    smoothing_px: Annotated[float, Field(gt=0)] = 4.0


class VisualAD(Scorer):
    """Tokens, cross-attention and patch alignment on a frozen encoder."""

    def __init__(self, encoder: Encoder, options: Options) -> None:
        super().__init__()
        self.encoder = encoder
        self.options = options
        width, levels = encoder.width, len(encoder.layers)
        self.tokens = nn.Parameter(TOKEN_START * width**-0.5 * torch.randn(2, width))
        self.norm = copy.deepcopy(encoder.final_norm).requires_grad_(True)
        self.attention = nn.ModuleList(
            SpatialCrossAttention(width, encoder.grid**2, options.dropout) for _ in range(levels)
        )
        self.align = nn.ModuleList(alignment(width, options.dropout) for _ in range(levels))

    def run(self, pixels: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return both tokens after the last block (B, 2, C), and each layer's patches (B, R, C)."""
        encoder = self.encoder
        own = encoder.as_class_tokens(self.tokens).expand(pixels.shape[0], -1, -1)
        sequence, taps, done = torch.cat([own, encoder.embed(pixels)], dim=1), [], 0
        for layer in encoder.layers:
            sequence, done = encoder.run(sequence, done, layer), layer
            taps.append(self.norm(sequence[:, 2 + encoder.prefix_tokens :]))
        last = encoder.run(sequence, done, encoder.depth)
        return self.norm(last[:, :2]), taps

    def compare(self, tokens: Tensor, taps: list[Tensor]) -> tuple[Tensor, Tensor]:
        """cos(patch, abnormal) − cos(patch, normal): (B, L, R); and the last layer's tokens."""
        differences = []
        for attend, align, patches in zip(self.attention, self.align, taps, strict=True):
            anchors = attend(tokens, patches)
            cosines = F.normalize(align(patches), dim=-1) @ F.normalize(anchors, dim=-1).mT
            differences.append(cosines[..., ABNORMAL] - cosines[..., NORMAL])
        return torch.stack(differences, dim=1), anchors

    def stretch(self, values: Tensor) -> Tensor:
        """Patch values (B, L, R) -> maps (B, L, S, S)."""
        grid, size = self.encoder.grid, self.encoder.input_px
        square = values.unflatten(-1, (grid, grid))
        return F.interpolate(square, (size, size), mode="bilinear", align_corners=False)

    def pool(self, maps: Tensor) -> Tensor:
        """Mean of the highest pixels: (B, S, S) -> (B,)."""
        pixels = maps.flatten(1)
        return pixels.topk(math.ceil(self.options.top_k * pixels.shape[1]), dim=1).values.mean(1)

    def forward(self, pixels: Tensor) -> Output:
        """Score a batch of 0..1 pixels (B, 3, S, S)."""
        differences, _ = self.compare(*self.run(pixels))
        # Interpolation is linear: the layers may as well be summed before.
        total = self.stretch(differences.sum(dim=1, keepdim=True))[:, 0]
        maps = gaussian_smooth(total, self.options.smoothing_px)
        return Output(self.pool(maps), maps)

    def loss(self, pixels: Tensor, abnormal: Tensor, masks: Tensor, has_mask: Tensor) -> Tensor:
        """Image loss + token separation + focal and Dice of every layer, the mean over images."""
        differences, anchors = self.compare(*self.run(pixels))
        maps = self.stretch(differences)  # (B, L, S, S)
        score = self.pool(maps.sum(dim=1))
        image = F.binary_cross_entropy_with_logits(score, abnormal.float())
        cosine = F.cosine_similarity(anchors[:, ABNORMAL], anchors[:, NORMAL], dim=-1)
        separation = (cosine - MARGIN).clamp_min(0).mean()
        pixel = segmentation_loss(maps[has_mask].sigmoid(), masks[has_mask, None])
        return image + separation + pixel.sum() / len(pixels)


def alignment(width: int, dropout: float) -> nn.Sequential:
    """Build the self-alignment of one layer's patches; no residual."""
    first, second = nn.Linear(width, width), nn.Linear(width, width)
    for linear in (first, second):
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
    return nn.Sequential(first, nn.GELU(), nn.Dropout(dropout), second, nn.Dropout(dropout))


def build(encoder: Encoder, options: Options) -> VisualAD:
    """Build the model at its start."""
    return VisualAD(encoder, options)


def fit(model: VisualAD, images: LabelledImages, job: Job) -> Fitted:
    """Train on the images; those of the target as eleven copies each."""
    options, device = model.options, model.device
    given = images if job.zero_shot else images.with_copies()

    def loss(indices: list[int]) -> Tensor:
        labels = (given.abnormal, given.masks, given.has_mask)
        return model.loss(
            given.stack(indices).to(device), *(label[indices].to(device) for label in labels)
        )

    epochs = options.epochs or (
        ZERO_SHOT_EPOCHS if job.zero_shot else few_shot_epochs(len(given), options.batch_size)
    )
    mean = train(
        model,
        loss,
        optimiser_of(model),
        len(given),
        job,
        epochs=epochs,
        schedule=cosine_to(FINAL_RATE * options.learning_rate, epochs),
        bound=lambda: clip_each(model.tokens, options.clip_norm),
    )
    return Fitted({"loss": mean})


def clip_each(tokens: nn.Parameter, longest: float) -> None:
    """Shorten the gradient of each token by itself (N, C)."""
    if tokens.grad is not None:
        torch.renorm(tokens.grad, p=2, dim=0, maxnorm=longest, out=tokens.grad)


def few_shot_epochs(count: int, batch_size: int) -> int:
    """Epochs that take about as many steps as the published runs, however few images there are."""
    return max(1, round(FEW_SHOT_STEPS / math.ceil(count / batch_size)))


def optimiser_of(model: VisualAD) -> torch.optim.AdamW:
    """Make the optimiser: the tokens learn ten times as fast as the heads."""
    rate = model.options.learning_rate
    heads = [p for n, p in model.named_parameters() if p.requires_grad and n != "tokens"]
    groups = [{"params": [model.tokens], "lr": rate}, {"params": heads, "lr": HEAD_RATE * rate}]
    return torch.optim.AdamW(groups, weight_decay=model.options.weight_decay)
