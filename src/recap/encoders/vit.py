"""A frozen vision transformer whose blocks are run one by one, on transformers.

The families differ in how they embed pixels and where their blocks are; nothing else. Running the
blocks ourselves lets adapters write back between them and the frozen prefix be computed once.
"""

from contextlib import nullcontext
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.encoders.memo import Memo, encoder_key
from recap.encoders.registry import RANDOM, Family, all_families
from recap.errors import SettingsError


class Encoder(nn.Module):
    """A frozen transformer at one input size, with its tapped layers."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model: Any,
        *,
        name: str,
        checksum: str,
        input_px: int,
        layers: tuple[int, ...] | None = None,
        mean: tuple[float, float, float] = (0.0, 0.0, 0.0),
        std: tuple[float, float, float] = (1.0, 1.0, 1.0),
        antialias_positions: bool = True,
    ) -> None:
        super().__init__()
        self.family = all_families()[model.config.model_type]
        self.name, self.checksum, self.input_px = name, checksum, input_px
        self.width = int(model.config.hidden_size)
        self.depth = int(model.config.num_hidden_layers)
        self.patch_px = int(model.config.patch_size)
        self.grid = input_px // self.patch_px
        self.prefix_tokens = self.family.prefix_tokens(model.config)
        self.layers = quarter_layers(self.depth) if layers is None else layers
        check_layers(self.layers, self.depth)
        self.interpolate = not antialias_positions
        if antialias_positions and self.family.positions:
            resample_positions(model, self.family, self.grid, input_px)
        self.model = model.eval().requires_grad_(False)
        self.memo: Memo | None = None
        """The place where encoded images are kept, if anywhere."""
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: a frozen encoder has no dropout, even while heads train."""
        return super().train(False)

    def embed(self, pixels: Tensor) -> Tensor:
        """0..1 pixels (B, 3, S, S) -> tokens before the first block (B, T, width)."""
        normalised = (pixels - self.mean) / self.std
        # cuDNN may round what this one convolution multiplies to ten bits (TF32).
        exact = torch.backends.cudnn.flags(enabled=False) if pixels.is_cuda else nullcontext()
        with exact:
            return self.family.embed(self.model, normalised, self.interpolate)

    def run(self, tokens: Tensor, start: int, stop: int) -> Tensor:
        """Run the blocks start + 1 .. stop (counted from 1)."""
        extra = {}
        if (rope := getattr(self.model, "rope_embeddings", None)) is not None:
            # Rotary positions depend on the size of the input alone.
            blank = tokens.new_empty((1, 3, self.input_px, self.input_px))
            extra["position_embeddings"] = rope(blank)
        for block in self.family.blocks(self.model)[start:stop]:
            tokens = block(tokens, attention_mask=None, **extra)
        return tokens

    def patches(self, tokens: Tensor) -> Tensor:
        """Drop class and register tokens: (..., T, width) -> (..., R, width)."""
        return tokens[..., self.prefix_tokens :, :]

    def class_tokens(self, tokens: Tensor) -> Tensor:
        """Take what stands for whole images, normalised as after the last block.

        (..., T, width) -> (..., width). The mean patch where the encoder has no class token.
        """
        normed = self.final_norm(tokens[..., :1, :] if self.prefix_tokens else tokens)
        return normed.mean(dim=-2)

    @property
    def final_norm(self) -> nn.Module:
        """The frozen normalisation after the last block, which `run` leaves out."""
        return getattr(self.model, self.family.final_norm)

    def as_class_tokens(self, tokens: Tensor) -> Tensor:
        """Tokens (N, width) as the first block sees them in the place of the class token.

        They get its position, where it has one, and whatever embedding ends with.
        """
        if self.prefix_tokens and self.family.positions:
            tokens = tokens + position_table(self.model, self.family)[0]
        norm = getattr(self.model, "pre_layrnorm", None)
        return tokens if norm is None else norm(tokens)

    def taps(self, pixels: Tensor) -> Tensor:
        """Patch tokens after every tapped layer of the untouched encoder: (B, L, R, width)."""
        return self.patches(self.hidden(pixels, self.layers)).contiguous()

    def hidden(self, pixels: Tensor, layers: tuple[int, ...]) -> Tensor:
        """Return all tokens after some blocks (counted from 1, ascending): (B, L, T, width)."""
        if self.memo is None or self.checksum == RANDOM:
            return self.compute(pixels, layers)
        key = (*encoder_key(self), layers)
        return self.memo.hidden(key, pixels, lambda images: self.compute(images, layers))

    def compute(self, pixels: Tensor, layers: tuple[int, ...]) -> Tensor:
        """Compute the same without the memo: for images that never come again."""
        tokens, done, found = self.embed(pixels), 0, []
        for layer in layers:
            tokens, done = self.run(tokens, done, layer), layer
            found.append(tokens)
        return torch.stack(found, dim=1)


def quarter_layers(depth: int) -> tuple[int, ...]:
    """Name the tapped layers Ω: quarters of the depth, counted from 1."""
    return tuple(round(depth * quarter / 4) for quarter in (1, 2, 3, 4))


def check_layers(layers: tuple[int, ...], depth: int) -> None:
    """Refuse layers that do not exist or do not ascend."""
    ascending = layers and list(layers) == sorted(set(layers))
    if not ascending or layers[0] < 1 or layers[-1] > depth:
        raise SettingsError(
            f"encoder.layers = {list(layers)}: give ascending block numbers from 1 to {depth}."
        )


def position_table(model: Any, family: Family) -> Tensor:
    """Return the learned positions of the class token, if any, and of the grid: (1 + g², width).

    Registers carry none.
    """
    holder = getattr(model.embeddings, str(family.positions))
    return holder.weight if isinstance(holder, nn.Embedding) else holder[0]


@torch.no_grad()
def resample_positions(model: Any, family: Family, grid: int, input_px: int) -> None:
    """Resize the learned position grid once, bicubic with antialias, to the input's grid."""
    embeddings = model.embeddings
    holder = getattr(embeddings, str(family.positions))
    table = position_table(model, family)
    # Registers carry no position, so at most the class token stands before the grid.
    class_rows = min(1, family.prefix_tokens(model.config))
    side = round((len(table) - class_rows) ** 0.5)
    if side == grid:
        resampled = table
    else:
        square = table[class_rows:].T.reshape(1, -1, side, side)
        square = F.interpolate(square, (grid, grid), mode="bicubic", antialias=True)
        resampled = torch.cat([table[:class_rows], square.flatten(2)[0].T])
    if isinstance(holder, nn.Embedding):
        embeddings.position_embedding = nn.Embedding.from_pretrained(resampled.clone())
        embeddings.position_ids = torch.arange(len(resampled), device=table.device)[None]
        embeddings.num_positions, embeddings.image_size = len(resampled), input_px
    else:
        embeddings.position_embeddings = nn.Parameter(resampled[None].clone())
        if hasattr(embeddings, "image_size"):
            embeddings.image_size = (input_px, input_px)
