"""ReCAP: one image through the model, in the order of the method's eight steps."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from recap.config import Settings
from recap.encoders.vit import Encoder
from recap.errors import SettingsError
from recap.methods.recap.adapters import Adapter, write_back
from recap.methods.recap.appearance import Whole, appearance_evidence, descriptor
from recap.methods.recap.class_tokens import class_evidence
from recap.methods.recap.edges import cell_count, finish_map
from recap.methods.recap.fusion import fuse_branches, fuse_layers, image_score
from recap.methods.recap.logits import class_logits, margin, probability
from recap.methods.recap.maps import upsample
from recap.methods.recap.memory import (
    choose_rows,
    nearest_distance,
    normalised_distance,
    standardised_distance,
)
from recap.methods.recap.principal import Spread, principal_rows
from recap.methods.recap.prototypes import (
    PrototypePair,
    find_anchors,
    find_drift,
    random_prototypes,
)
from recap.methods.recap.scorer import BranchOutput, Output, Scorer
from recap.methods.recap.tokens import DET, SEG, Tokens

Teacher = Literal["masks", "labels"]
"""What a single branch was taught by."""


class ReCAP(Scorer):
    """A frozen encoder with adapters, prototypes and a memory of normal patches.

    With `trained_head=False` there are neither adapters nor prototypes: the memory holds the
    encoder's own tokens. That is what fitting on normal images alone gives, unless made-up lesions
    train adapters; then there are no prototypes after training.

    `single` is set where one branch serves maps and scores (`model.branches = "taught"`); it says
    what taught that branch. Seg and det are then the same tokens, prototypes and weights.
    """

    memory: Tensor | None
    """Unit rows (L, 2, M, C), or (L, 1, M, C) where both branches share the encoder's tokens."""
    memory_origin: Tensor | None
    """Of a coreset, which of the N · R patches that it was chosen from its rows are: (L, 2, M) or
    (L, 1, M). None where the memory has all of them, in their order."""
    normal_distance: Tensor | None
    """(2, L): mean and deviation of normal patches' distances to other normal images."""
    appearance_direction: Tensor | None
    """(D + 1,): which way whole images differ; see `appearance`."""
    class_direction: Tensor | None
    """(D + 1,): which way class tokens differ in other domains; see `class_tokens`."""

    def __init__(
        self,
        encoder: Encoder,
        settings: Settings,
        trained_head: bool = True,
        single: Teacher | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.settings = settings
        self.single = single
        layers, head = len(encoder.layers), settings.model
        if single and head.write_back:
            raise SettingsError(
                'model.branches = "taught" needs side adapters: both branches write back. '
                'Set model.write_back = false, or model.branches = "both".'
            )
        if self.starts_principal and head.write_back:
            raise SettingsError(
                'model.adapter_start = "principal" needs side adapters: what later layers see is '
                "not known before the first ones are. Set model.write_back = false, or "
                'model.adapter_start = "random".'
            )
        self.channels = head.bottleneck or min(768, encoder.width)
        # One adapter and one pair per layer and branch: seg and det of layer 1, of layer 2, …
        self.adapters, self.prototypes = nn.ModuleList(), nn.ModuleList()
        self.branches = 1 if single else 2
        if trained_head:
            shared = random_prototypes(self.channels) if head.conditioning == "tokens" else None
            for _ in range(self.branches * layers):
                self.adapters.append(Adapter(encoder.width, self.channels, head.write_back))
                pair = PrototypePair(self.channels, head.conditioning, head.eta, shared)
                self.prototypes.append(pair)
        weighs = trained_head and head.layer_fusion == "learned"
        self.theta_seg = nn.Parameter(torch.zeros(layers), requires_grad=weighs)
        self.theta_det = self.theta_seg
        if not single:
            self.theta_det = nn.Parameter(torch.zeros(layers), requires_grad=weighs)
        self.register_buffer("memory", None)
        self.register_buffer("memory_origin", None)
        self.register_buffer("normal_distance", None)
        self.register_buffer("appearance_direction", None)
        self.register_buffer("class_direction", None)

    @property
    def has_adapters(self) -> bool:
        """Whether the tokens are adapted; else they are the encoder's own."""
        return len(self.adapters) > 0

    @property
    def has_prototypes(self) -> bool:
        """Whether prototypes have a say; else the memory alone has."""
        return len(self.prototypes) > 0

    @property
    def starts_principal(self) -> bool:
        """Whether adapters start at the principal directions of the support's tokens."""
        start = self.settings.model.adapter_start
        return start == "principal" or (start == "by_teacher" and self.single == "masks")

    @property
    def writes_back(self) -> bool:
        """Whether adapters change what later blocks see."""
        return self.has_adapters and self.settings.model.write_back

    def adapter(self, layer: int, branch: int) -> Adapter:
        """The adapter of one layer (from 0) and branch."""
        return cast(Adapter, self.adapters[self._place(layer, branch)])

    def pair(self, layer: int, branch: int) -> PrototypePair:
        """The prototypes of one layer (from 0) and branch."""
        return cast(PrototypePair, self.prototypes[self._place(layer, branch)])

    def _place(self, layer: int, branch: int) -> int:
        return self.branches * layer + (0 if self.single else branch)

    def base_prototypes(self) -> Tensor:
        """All prototypes before re-centring: (L, b, 2, C) as layer, branch, class."""
        bases = torch.stack([cast(PrototypePair, pair).base for pair in self.prototypes])
        return bases.unflatten(0, (-1, self.branches))

    def forward(self, pixels: Tensor) -> Output:
        """Score a batch of 0..1 pixels (B, 3, S, S)."""
        prefix = self.prefix(pixels)
        return self.score_prefix(prefix, self.whole(pixels, prefix))

    def score_prefix(self, prefix: Tensor, whole: Whole) -> Output:
        """Score images from their frozen prefix and from what they are as a whole; heads on one
        encoder may share both."""
        output = self.score_tokens(self.adapt(prefix), whole)
        return replace(output, descriptor=whole.descriptor)

    @torch.no_grad()
    def prefix(self, pixels: Tensor) -> Tensor:
        """All work that no trained parameter touches; computed once per image while fitting.

        Side adapters: all tokens of the tapped layers (B, L, T, width). Write-back: those at the
        first tapped layer (B, T, width).
        """
        if self.writes_back:
            return self.encoder.run(self.encoder.embed(pixels), 0, self.encoder.layers[0])
        return self.encoder.hidden(pixels, self.encoder.layers)

    def taps(self, prefix: Tensor) -> list[Tensor]:
        """Patches of each tapped layer that side adapters see: (B, R, width) each."""
        return [self.encoder.patches(layer).contiguous() for layer in prefix.unbind(dim=1)]

    def whole(self, pixels: Tensor, prefix: Tensor) -> Whole:
        """Images as a whole."""
        classes = None if self.writes_back else self.encoder.class_tokens(prefix)
        return Whole(pixels, self.frozen_patches(prefix), classes)

    @torch.no_grad()
    def describe(self, prefix: Tensor) -> Tensor:
        """Each image as one unit vector (B, D)."""
        return descriptor(self.frozen_patches(prefix))

    def frozen_patches(self, prefix: Tensor) -> Tensor:
        """(B, L, R, width); when writing back the first tapped layer alone, as the others are no
        longer the encoder's own."""
        patches = self.encoder.patches(prefix)
        return patches[:, None] if self.writes_back else patches

    def adapt(self, prefix: Tensor) -> Tokens:
        """Scoring tokens from the frozen prefix; without adapters, the taps themselves."""
        if self.writes_back:
            return self._adapt_writing_back(prefix)
        taps = self.taps(prefix)
        if self.has_adapters and not self.single:
            return [
                (self.adapter(layer, SEG)(tap), self.adapter(layer, DET)(tap))
                for layer, tap in enumerate(taps)
            ]
        if self.has_adapters:
            taps = [self.adapter(layer, DET)(tap) for layer, tap in enumerate(taps)]
        return [(tokens, tokens) for tokens in taps]

    def _adapt_writing_back(self, hidden: Tensor) -> Tokens:
        collected, blocks, skip = [], self.encoder.layers, self.encoder.prefix_tokens
        for layer, block in enumerate(blocks):
            seg, det = self.adapter(layer, SEG), self.adapter(layer, DET)
            seg_tokens, det_tokens = seg(hidden), det(hidden)
            collected.append((seg_tokens[:, skip:], det_tokens[:, skip:]))
            if layer + 1 < len(blocks):  # nothing reads what follows the last layer
                hidden = write_back(hidden, seg.residual(seg_tokens), det.residual(det_tokens))
                hidden = self.encoder.run(hidden, block, blocks[layer + 1])
        return collected

    def score_tokens(self, tokens: Tokens, whole: Whole) -> Output:
        """Prototypes, memory and their fusion from the scoring tokens."""
        prototype, drift = self.prototype_branch(tokens) if self.has_prototypes else (None, None)
        memory = self.memory_branch(tokens) if self.memory is not None else None
        fused = self.fuse(prototype, memory)
        evidence = self.whole_evidence(whole)
        score = self.with_appearance(fused.score, evidence)
        maps = finish_map(fused.map, whole.edges(self.settings.model.map_edge_px))
        return Output(score, maps, prototype, memory, drift, evidence)

    def whole_evidence(self, whole: Whole) -> Tensor | None:
        """Evidence of images as a whole (B,), if it has a share in their scores."""
        if self.class_direction is not None:
            return class_evidence(whole.class_vectors, self.class_direction)
        if self.appearance_direction is not None:
            return appearance_evidence(whole.appearance, self.appearance_direction)
        return None

    def with_appearance(self, score: Tensor, evidence: Tensor | None) -> Tensor:
        """The score with the share of the image as a whole, if that has any."""
        return score if evidence is None else fuse_branches(score, evidence, self.whole_weight)

    @property
    def whole_weight(self) -> float:
        """The share of the image as a whole in a score: all of it where class tokens give it."""
        return 1.0 if self.class_direction is not None else self.settings.model.appearance_weight

    def fuse(self, prototype: BranchOutput | None, memory: BranchOutput | None) -> BranchOutput:
        """Prototypes and memory as one; where one is missing the other stays as it is."""
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

    def prototype_branch(self, tokens: Tokens) -> tuple[BranchOutput, Tensor]:
        """Image score and map from the re-centred prototypes, and their drift (B, 2, L, 2)."""
        seg, det, drift = self.both_margins(tokens)
        mapped, pooled = self.read_margins(seg, det)
        maps = fuse_layers(probability(self.upsample(mapped)), self.theta_seg)
        return BranchOutput(self.pool_patches(probability(pooled)), maps), drift

    def both_margins(self, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        """Margins (L, B, R) of seg and det, and the drift (B, 2, L, 2) of their prototypes."""
        seg, seg_drift = self.prototype_margins([seg for seg, _ in tokens], SEG)
        if self.single:
            return seg, seg, torch.stack([seg_drift, seg_drift], dim=1)
        det, det_drift = self.prototype_margins([det for _, det in tokens], DET)
        return seg, det, torch.stack([seg_drift, det_drift], dim=1)

    def read_margins(self, seg: Tensor, det: Tensor) -> tuple[Tensor, Tensor]:
        """What maps and what image scores are made of.

        Maps are softer than training: α = 100 leaves hardly anything between 0 and 1. Where masks
        taught a single branch, the score is the peak of its map.
        """
        head = self.settings.model
        soft = seg * ((head.map_logit_scale or head.logit_scale) / head.logit_scale)
        return soft, soft if self.single == "masks" else det

    def trained_outputs(self, tokens: Tokens) -> BranchOutput:
        """What the losses see: scores and maps at α, without blur or the image's edges."""
        seg, det, _ = self.both_margins(tokens)
        return BranchOutput(self.trained_scores(det), self.trained_maps(seg))

    def trained_scores(self, margins: Tensor) -> Tensor:
        """Scores from the margins of the det branch: (L, B, R) -> (B,)."""
        return image_score(probability(margins), self.theta_det, self.settings.model.top_k)

    def trained_maps(self, margins: Tensor) -> Tensor:
        """Maps from the margins of the seg branch: (L, B, R) -> (B, S, S)."""
        return fuse_layers(probability(self.trained_upsample(margins)), self.theta_seg)

    @torch.no_grad()
    def drift_bound(self) -> Tensor:
        """The largest drift that any image can cause: (2, L, 2) as branch, layer, class."""
        bounds = [cast(PrototypePair, pair).drift_bound() for pair in self.prototypes]
        return (
            torch.stack(bounds).unflatten(0, (-1, self.branches)).transpose(0, 1).expand(2, -1, -1)
        )

    def prototype_margins(self, tokens: Sequence[Tensor], branch: int) -> tuple[Tensor, Tensor]:
        """Margins (L, B, R) of one branch, and the drift (B, L, 2) of its prototypes."""
        pairs = [self.pair(layer, branch) for layer in range(len(tokens))]
        patches = torch.stack(list(tokens))  # (L, B, R, C)
        moved_by = patches if self.settings.training.context_gradient else patches.detach()
        anchors = find_anchors(pairs, moved_by)
        scale = self.settings.model.logit_scale
        logits = class_logits(patches.flatten(0, 1), anchors.flatten(0, 1), scale)
        margins = margin(logits).unflatten(0, (len(pairs), -1))
        return margins, find_drift(pairs, anchors).transpose(0, 1)

    def memory_branch(self, tokens: Tokens) -> BranchOutput:
        """Image score and map from the distance to remembered normal patches."""
        assert self.memory is not None
        layers = list(zip(tokens, self.memory, strict=True))
        to_det = torch.stack([nearest_distance(det, rows[-1]) for (_, det), rows in layers])
        if self.memory.shape[1] == 1:
            return self.pool_distances(to_det.unsqueeze(1).expand(-1, 2, -1, -1))
        to_seg = torch.stack([nearest_distance(seg, rows[SEG]) for (seg, _), rows in layers])
        return self.pool_distances(torch.stack([to_seg, to_det], dim=1))

    def pool_distances(self, distance: Tensor, trained: bool = False) -> BranchOutput:
        """Image score and map from nearest distances (L, 2, B, R); or that map as losses see it."""
        evidence = normalised_distance(distance[:, SEG])
        # Interpolation is linear, so the layers may be fused before it: one map instead of L.
        fused = fuse_layers(evidence, self.theta_seg)
        maps = self.trained_upsample(fused) if trained else self.upsample(fused)
        if self.normal_distance is None:
            return BranchOutput(self.pool_patches(normalised_distance(distance[:, DET])), maps)
        beyond = standardised_distance(distance[:, DET], self.normal_distance)
        share = self.settings.model.map_top_k
        return BranchOutput(image_score(beyond, self.theta_det, share), maps)

    def pool_patches(self, patches: Tensor) -> Tensor:
        """Image score from the patches of the det branch: (L, B, R) -> (B,)."""
        return image_score(patches, self.theta_det, self.pooled_share)

    @property
    def pooled_share(self) -> float:
        """Share of the patches that an image score is the mean of: few where masks were learned."""
        head = self.settings.model
        return head.map_top_k if self.single == "masks" else head.top_k

    def upsample(self, values: Tensor) -> Tensor:
        """Patch values as a map: (..., R) -> (..., S, S).

        Where maps follow edges, they are drawn on cells until `finish_map` does that: (..., n, n).
        """
        encoder, head = self.encoder, self.settings.model
        size_px = encoder.input_px
        cells = cell_count(size_px) if head.map_edge_px else None
        return upsample(values, size_px, encoder.patch_px, head.upsample, head.map_blur_px, cells)

    def trained_upsample(self, values: Tensor) -> Tensor:
        """The same as losses see it: neither blur nor edges, (..., R) -> (..., S, S)."""
        encoder = self.encoder
        return upsample(values, encoder.input_px, encoder.patch_px, self.settings.model.upsample)

    @torch.no_grad()
    def start_adapters(self, spreads: Sequence[Spread]) -> None:
        """Start the adapters of each layer at the principal directions of its tokens."""
        for layer, spread in enumerate(spreads):
            rows = principal_rows(spread.covariance(), self.channels)
            for branch in (SEG, DET)[: self.branches]:
                self.adapter(layer, branch).down.weight[: len(rows)] = rows

    @torch.no_grad()
    def start_prototypes(self, normal: Tokens, abnormal: Tokens) -> None:
        """Start at the class means of the support tokens, adapters as they are."""
        for layer in range(len(normal)):
            for branch in (SEG, DET)[: self.branches]:
                classes = (normal[layer][branch], abnormal[layer][branch])
                means = torch.stack([tokens.mean(dim=(0, 1)) for tokens in classes])
                self.pair(layer, branch).start_at(means)

    def drop_prototypes(self) -> None:
        """Leave judging to the memory."""
        self.prototypes = nn.ModuleList()

    @torch.no_grad()
    def remember(self, normal: Tokens) -> None:
        """Build the memory from the tokens of normal images."""
        branches = (SEG, DET) if self.has_adapters and not self.single else (DET,)
        coreset = self.settings.memory.coreset
        made = [choose_rows(layer[branch], coreset) for layer in normal for branch in branches]
        self.memory = torch.stack([rows for rows, _ in made]).unflatten(0, (-1, len(branches)))
        chosen = [origin for _, origin in made if origin is not None]
        self.memory_origin = (
            torch.stack(chosen).unflatten(0, (-1, len(branches))) if chosen else None
        )
