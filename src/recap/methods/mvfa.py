"""MVFA: adapters that write back into a frozen CLIP, compared with sentences and with a memory.

Per layer, for tokens p of one branch (the adapter's bottleneck) and text directions t:

    a = softmax(100 · ⟨p / ‖p‖, t⟩)_abnormal        d = min over remembered rows of 1 − cosine
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from recap.config import Section
from recap.encoders.vit import Encoder
from recap.methods._prompts import anchors_of, features_of, text_channels, tower_for
from recap.methods.base import Output, Scorer, mix
from recap.methods.features import FeatureStore
from recap.methods.fitting import Fitted, Job
from recap.methods.images import LabelledImages
from recap.methods.recap.adapters import Adapter, write_back
from recap.methods.recap.losses import segmentation_loss
from recap.methods.recap.maps import upsample
from recap.methods.recap.memory import build_memory, nearest_distance, normalised_distance
from recap.methods.recap.prototypes import class_logits, margin, probability
from recap.methods.training import train

STATEMENT = (
    "MVFA: adapters written back into a frozen CLIP encoder, compared with text directions and, "
    "few-shot, with a memory of normal patches."
)
OFFICIAL: dict[str, Any] = {
    "encoder": {"name": "clip-vit-l14-336", "input_px": 240, "normalise": "unit"},
    "options": {"clip_norm": None, "remember_class_token": True},
}

SEG, DET = 0, 1
LOGIT_SCALE = 100.0
FEW_SHOT_RATE, ZERO_SHOT_RATE = 1e-3, 1e-4
BETAS = (0.5, 0.999)

Tokens = Sequence[tuple[Tensor, Tensor]]
"""Of every layer, as (seg, det), each (B, T, C), the class token first."""


class Options(Section):
    """Settings of MVFA."""

    domain: str = ""
    """The scored subject, for the sentences. None means the name that the support comes with or,
    zero-shot, that `--target` gives; without one, "medical image"."""
    epochs: Annotated[int, Field(ge=1)] = 50
    batch_size: Annotated[int, Field(ge=1)] = 1
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """None means 1e-3 few-shot and 1e-4 zero-shot."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Longest gradient of a step; none means any length."""
    memory_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    remember_copies: bool = True
    """Remember all eleven copies of the normal images, or the images alone."""
    remember_class_token: bool = False
    """Let class tokens be neighbours of patches, as the published code does."""


class MVFA(Scorer):
    """Two adapters per tapped layer, and how their tokens become a score and a map."""

    text: Tensor | None  # (2, C)
    memory: Tensor | None  # (L, 2, M, C)
    has_masks: Tensor
    """Whether segmentation was trained; if not, the map is that of detection."""
    score_is_maximum: Tensor
    """Whether the image score is the highest value of the map."""

    def __init__(self, encoder: Encoder, options: Options) -> None:
        super().__init__()
        self.encoder, self.options = encoder, options
        self.channels = text_channels(encoder)
        # Of every layer seg, then det.
        self.adapters = nn.ModuleList(
            Adapter(encoder.width, self.channels, write_back=True) for _ in 2 * encoder.layers
        )
        self.register_buffer("text", None)
        self.register_buffer("memory", None)
        self.register_buffer("has_masks", torch.tensor(False))
        self.register_buffer("score_is_maximum", torch.tensor(False))

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Return all tokens at the first tapped layer, untouched by adapters: (B, T, width)."""
        return self.encoder.run(self.encoder.embed(pixels), 0, self.encoder.layers[0])

    def adapt(self, hidden: Tensor, teach_seg: bool = True) -> Tokens:
        """Tokens of both branches; without `teach_seg` the seg adapters get no gradient.

        Those of detection still do, through what the others write back.
        """
        collected, blocks = [], self.encoder.layers
        for layer, block in enumerate(blocks):
            seg, det = (cast(Adapter, self.adapters[2 * layer + b]) for b in (SEG, DET))
            with nullcontext() if teach_seg else untaught(seg):
                seg_tokens = seg(hidden)
                seg_residual = seg.residual(seg_tokens)
            det_tokens = det(hidden)
            collected.append((seg_tokens, det_tokens))
            if layer + 1 < len(blocks):  # nothing reads what follows the last layer
                hidden = write_back(hidden, seg_residual, det.residual(det_tokens))
                hidden = self.encoder.run(hidden, block, blocks[layer + 1])
        return collected

    def margins(self, tokens: Tokens, anchors: Tensor, branch: int) -> Tensor:
        """Logit differences of the patches: anchors (B, 2, C) -> (L, B, R)."""
        return torch.stack(
            [margin(class_logits(self._patches(t[branch]), anchors, LOGIT_SCALE)) for t in tokens]
        )

    def to_pixels(self, values: Tensor) -> Tensor:
        """Patch values (..., R) -> maps (..., S, S)."""
        return upsample(values, self.encoder.input_px, self.encoder.patch_px, "corners")

    def forward(self, pixels: Tensor) -> Output:
        """Score a batch of 0..1 pixels (B, 3, S, S)."""
        assert self.text is not None
        tokens = self.adapt(self.encode(pixels))
        fused = self._text_branch(tokens, self.text.expand(pixels.shape[0], -1, -1))
        if self.memory is not None:
            memory, weight = self._memory_branch(tokens, self.memory), self.options.memory_weight
            score, maps = mix(fused.score, memory.score, weight), mix(fused.map, memory.map, weight)
            fused = Output(score, maps)
        score = fused.map.flatten(1).amax(dim=1) if self.score_is_maximum else fused.score
        return Output(score, fused.map)

    def _text_branch(self, tokens: Tokens, anchors: Tensor) -> Output:
        """Means over layers, where the published sums are scaled by the test set."""
        det = self.margins(tokens, anchors, DET)
        seg = self.margins(tokens, anchors, SEG) if self.has_masks else det
        maps = probability(self.to_pixels(seg)).mean(dim=0)
        return Output(probability(det).mean(dim=(0, 2)), maps)

    def _memory_branch(self, tokens: Tokens, memory: Tensor) -> Output:
        """Do the same with d / 2: the score is the mean of the map that detection draws."""
        det = self.to_pixels(self._distances(tokens, memory, DET)).mean(dim=0)
        seg = det
        if self.has_masks:
            seg = self.to_pixels(self._distances(tokens, memory, SEG)).mean(dim=0)
        return Output(det.mean(dim=(1, 2)), seg)

    def _distances(self, tokens: Tokens, memory: Tensor, branch: int) -> Tensor:
        layers = zip(tokens, memory[:, branch], strict=True)
        distances = [nearest_distance(self._patches(t[branch]), rows) for t, rows in layers]
        return normalised_distance(torch.stack(distances))

    def _patches(self, tokens: Tensor) -> Tensor:
        return self.encoder.patches(tokens).contiguous()

    def loss(self, prefix: Tensor, anchors: Tensor, labels: tuple[Tensor, ...]) -> Tensor:
        """Summed over layers, mean over images; `labels` are abnormal, masks and has_mask."""
        abnormal, masks, has_mask = labels
        # Without a mask the published code does not step the seg adapters.
        tokens = self.adapt(prefix, teach_seg=bool(has_mask.any()))
        patches = probability(self.margins(tokens, anchors, DET)).mean(dim=2)  # (L, B)
        total = detection_loss(patches, abnormal).sum()
        if has_mask.any():
            seg = self.margins(tokens, anchors, SEG)[:, has_mask]
            maps = probability(self.to_pixels(seg)).flatten(0, 1)
            target = masks[has_mask].repeat(len(tokens), 1, 1)
            total = total + segmentation_loss(maps, target).sum()
        return total / len(prefix)


@contextmanager
def untaught(adapter: Adapter) -> Iterator[None]:
    """Compute meanwhile without a gradient with respect to the adapter's own numbers."""
    adapter.requires_grad_(False)
    try:
        yield
    finally:
        adapter.requires_grad_(True)


def detection_loss(probabilities: Tensor, abnormal: Tensor) -> Tensor:
    """Cross-entropy that takes the mean probability of a layer for a logit: (L, B), (B,) -> same.

    Published so: it is never below log(1 + 1/e), and its gradient never fades.
    """
    labels = abnormal.to(probabilities.dtype).expand_as(probabilities)
    return F.binary_cross_entropy_with_logits(probabilities, labels, reduction="none")


def build(encoder: Encoder, options: Options) -> MVFA:
    """Build the model at its start."""
    return MVFA(encoder, options)


def fit(model: MVFA, images: LabelledImages, job: Job) -> Fitted:
    """Train the adapters; remember the normal images of a target."""
    tower = tower_for(job, model.channels, model.device)
    model.text, features = features_of(tower, images, job.options.domain, job.zero_shot)
    given = images if job.zero_shot else images.with_copies()
    store = job.encoded(model, given)
    mean = _train(model, given, store, features, job)
    has_masks = bool(given.has_mask.any())
    model.has_masks.fill_(has_masks)
    # The published rule for few shots of data with masks.
    model.score_is_maximum.fill_(has_masks and not job.zero_shot)
    if job.zero_shot or model.options.memory_weight == 0:
        return Fitted({"loss": mean})
    model.owner = _remember(model, given, store)
    return Fitted({"loss": mean})


def _train(
    model: MVFA, images: LabelledImages, store: FeatureStore, features: Tensor, job: Job
) -> float:
    options, device = model.options, model.device
    rate = options.learning_rate or (ZERO_SHOT_RATE if job.zero_shot else FEW_SHOT_RATE)
    known = (images.abnormal, images.masks, images.has_mask)
    trained = list(model.adapters.parameters())

    def loss(indices: list[int]) -> Tensor:
        labels = tuple(label[indices].to(device) for label in known)
        anchors = anchors_of(features, images, indices)
        return model.loss(store[indices].to(device), anchors, labels)

    def bound() -> None:
        if options.clip_norm:
            clip_grad_norm_(trained, options.clip_norm)

    return train(
        model,
        loss,
        torch.optim.Adam(trained, lr=rate, betas=BETAS),
        len(images),
        job,
        epochs=options.epochs,
        bound=bound,
    )


@torch.no_grad()
def _remember(model: MVFA, images: LabelledImages, store: FeatureStore) -> Tensor:
    """Keep the adapted tokens of normal images; returns which image each row comes from."""
    chosen = images.positions(abnormal=False)
    if not model.options.remember_copies:
        chosen = [i for i in chosen if i == 0 or images.origin[i] != images.origin[i - 1]]
    skip = 0 if model.options.remember_class_token else model.encoder.prefix_tokens
    tokens = [model.adapt(store[[i]].to(model.device)) for i in chosen]
    layers = [
        torch.stack(
            [build_memory(torch.cat([t[layer][b][:, skip:] for t in tokens])) for b in (SEG, DET)]
        )
        for layer in range(len(model.encoder.layers))
    ]
    model.memory = torch.stack(layers)
    return images.origin[chosen].repeat_interleave(model.memory.shape[2] // len(chosen))
