"""ReCAP: one image through the model, in the order of the method's eight steps."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recap.config import Settings
from recap.encoders.vit import Encoder
from recap.model.adapters import Adapters
from recap.model.fusion import fuse_branches, fuse_layers, image_score
from recap.model.logits import class_logits, margin, probability
from recap.model.maps import upsample
from recap.model.memory import build_memory, nearest_distance, normalised_distance
from recap.model.prototypes import BoundedPrototypes

SEG, DET = 0, -1
"""Branch positions. The last is det also where both branches share the frozen tokens."""


@dataclass(frozen=True)
class BranchOutput:
    """Scores (B,) and maps (B, S, S) of the prototypes or of the memory."""

    score: Tensor
    map: Tensor


@dataclass(frozen=True)
class Output:
    """What the model says about a batch, in the input's frame (S × S)."""

    score: Tensor
    map: Tensor
    prototype: BranchOutput | None
    memory: BranchOutput | None
    drift: Tensor | None
    """(B, 2, L, 2): image, branch, layer, class."""


class ReCAP(nn.Module):
    """A frozen encoder with adapters, prototypes and a memory of normal patches.

    With `trained_head=False` there are neither adapters nor prototypes: the memory holds the
    encoder's own tokens. That is what fitting on normal images alone gives.
    """

    memory: Tensor | None

    def __init__(self, encoder: Encoder, settings: Settings, trained_head: bool = True) -> None:
        super().__init__()
        model = settings.model
        self.encoder = encoder
        self.settings = settings
        layers = len(encoder.layers)
        self.channels = (model.bottleneck or min(768, encoder.width)) if trained_head else encoder.width
        self.adapters: Adapters | None = None
        self.prototypes: BoundedPrototypes | None = None
        if trained_head:
            self.adapters = Adapters(layers, encoder.width, self.channels, model.write_back)
            self.prototypes = BoundedPrototypes(layers, self.channels, model.conditioning, model.eta)
        self.theta_seg = nn.Parameter(torch.zeros(layers), requires_grad=trained_head)
        self.theta_det = nn.Parameter(torch.zeros(layers), requires_grad=trained_head)
        self.register_buffer("memory", None)

    @property
    def num_trainable_parameters(self) -> int:
        """Parameters that training changes; the encoder is frozen and the memory is not trained."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    @property
    def writes_back(self) -> bool:
        """Whether adapters change what later blocks see."""
        return self.adapters is not None and self.settings.model.write_back

    def forward(self, pixels: Tensor) -> Output:
        """Score a batch of 0..1 pixels (B, 3, S, S)."""
        return self.score_tokens(self.adapt(self.prefix(pixels)))

    @torch.no_grad()
    def prefix(self, pixels: Tensor) -> Tensor:
        """All work that no trained parameter touches; computed once per image while fitting.

        Side adapters: the tapped patch tokens (B, L, R, width). Write-back: all tokens at the
        first tapped layer (B, T, width).
        """
        if self.writes_back:
            return self.encoder.run(self.encoder.embed(pixels), 0, self.encoder.layers[0])
        return self.encoder.taps(pixels)

    def adapt(self, prefix: Tensor) -> Tensor:
        """Scoring tokens from the frozen prefix: (L, 2, B, R, C), or (L, 1, …) without adapters."""
        if self.adapters is None:
            return prefix.transpose(0, 1).unsqueeze(1)
        if self.writes_back:
            return self._adapt_writing_back(prefix)
        taps = prefix.unbind(dim=1)
        return torch.stack([self.adapters.tokens(tap, i) for i, tap in enumerate(taps)])

    def _adapt_writing_back(self, hidden: Tensor) -> Tensor:
        assert self.adapters is not None
        collected, layers = [], self.encoder.layers
        for index, layer in enumerate(layers):
            tokens = self.adapters.tokens(hidden, index)  # (2, B, T, C)
            collected.append(tokens[:, :, self.encoder.prefix_tokens :])
            if index + 1 < len(layers):  # nothing reads what follows the last layer
                hidden = self.adapters.write_back(hidden, tokens, index)
                hidden = self.encoder.run(hidden, layer, layers[index + 1])
        return torch.stack(collected)

    def score_tokens(self, tokens: Tensor) -> Output:
        """Both branches and their fusion from the scoring tokens."""
        prototype, drift = self.prototype_branch(tokens) if self.prototypes else (None, None)
        memory = self.memory_branch(tokens) if self.memory is not None else None
        fused = self._fuse(prototype, memory)
        return Output(fused.score, fused.map, prototype, memory, drift)

    def _fuse(self, prototype: BranchOutput | None, memory: BranchOutput | None) -> BranchOutput:
        if prototype is None or memory is None:
            only = prototype or memory
            if only is None:
                raise RuntimeError("A model without prototypes needs a memory: call remember().")
            return only
        weight = self.settings.memory.weight
        return BranchOutput(
            fuse_branches(prototype.score, memory.score, weight),
            fuse_branches(prototype.map, memory.map, weight),
        )

    def prototype_branch(self, tokens: Tensor) -> tuple[BranchOutput, Tensor]:
        """Image score and map from the re-centred prototypes, and their drift (B, 2, L, 2)."""
        assert self.prototypes is not None
        anchors = self.prototypes(tokens)  # (L, 2, B, 2, C)
        scale = self.settings.model.logit_scale
        patch_margin = margin(class_logits(tokens, anchors, scale))  # (L, 2, B, R)
        maps = probability(self._upsample(patch_margin[:, SEG]))
        branch = self._pool(probability(patch_margin[:, DET]), maps)
        return branch, self.prototypes.drift(anchors).permute(2, 1, 0, 3)

    def memory_branch(self, tokens: Tensor) -> BranchOutput:
        """Image score and map from the distance to remembered normal patches."""
        assert self.memory is not None
        return self.pool_distances(nearest_distance(tokens, self.memory))

    def pool_distances(self, distance: Tensor) -> BranchOutput:
        """Image score and map from nearest distances (L, 2, B, R)."""
        evidence = normalised_distance(distance)
        return self._pool(evidence[:, DET], self._upsample(evidence[:, SEG]))

    def _pool(self, patches: Tensor, maps: Tensor) -> BranchOutput:
        score = image_score(patches, self.theta_det, self.settings.model.top_k)
        return BranchOutput(score, fuse_layers(maps, self.theta_seg))

    def _upsample(self, values: Tensor) -> Tensor:
        encoder = self.encoder
        return upsample(values, encoder.input_px, encoder.patch_px, self.settings.model.upsample)

    @torch.no_grad()
    def start_prototypes(self, normal: Tensor, abnormal: Tensor) -> None:
        """Start at the class means of the support tokens (L, 2, N, R, C), adapters as they are."""
        if self.prototypes is not None:
            means = [tokens.mean(dim=(2, 3)) for tokens in (normal, abnormal)]
            self.prototypes.start_at(torch.stack(means, dim=2))

    @torch.no_grad()
    def remember(self, normal: Tensor) -> None:
        """Build the memory from tokens of normal images (L, 2, N, R, C)."""
        self.memory = build_memory(normal, self.settings.memory.coreset)
