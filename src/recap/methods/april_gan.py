"""APRIL-GAN: one linear layer per tap of a frozen CLIP, compared with sentences; few-shot, also
the distance of the untouched tokens to those of normal images.

    map = Σ_l softmax(100 · cos(k_l(p), t))_abnormal + Σ_l min over remembered rows of 1 − cosine
"""

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from recap.config import Section
from recap.data.augment import COPIES
from recap.encoders.vit import Encoder
from recap.errors import InputError
from recap.methods._prompts import anchors_of, features_of, text_channels, tower_for
from recap.methods.base import Output, Scorer
from recap.methods.features import FeatureStore
from recap.methods.fitting import Fitted, Job
from recap.methods.images import LabelledImages
from recap.methods.recap.losses import segmentation_loss
from recap.methods.recap.maps import upsample
from recap.methods.recap.memory import build_memory, nearest_distance
from recap.methods.recap.prototypes import class_logits, margin, probability
from recap.methods.training import train

STATEMENT = (
    "APRIL-GAN: a linear layer per tap of a frozen CLIP encoder, compared with text directions; "
    "where normal images of the target were given, also their memory."
)
OFFICIAL: dict[str, Any] = {"encoder": {"name": "clip-vit-l14-336", "input_px": 518}}

LOGIT_SCALE = 100.0
FEW_SHOT_EPOCHS, ZERO_SHOT_EPOCHS = 50, 15
BETAS = (0.5, 0.999)


class Options(Section):
    """Settings of APRIL-GAN."""

    domain: str = ""
    """The scored subject, for the sentences. None means the name that the support comes with or,
    zero-shot, that `--target` gives; without one, "medical image"."""
    epochs: Annotated[int, Field(ge=1)] | None = None
    """None means 50 few-shot and 15 zero-shot."""
    batch_size: Annotated[int, Field(ge=1)] = 8
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    copies: bool = True
    """Few-shot: train on eleven copies of every image; the memory holds the images alone."""


class AprilGAN(Scorer):
    """The linear layers, and how tokens become a score and a map."""

    text: Tensor | None  # (2, C)
    projection: Tensor | None
    """(C, width): CLIP's own, from its class token to the space of its texts."""
    memory: Tensor | None  # (L, M, width)
    trained: Tensor
    """Whether there were masks to train on; if not, the map is the memory's alone."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder, self.channels = encoder, text_channels(encoder)
        self.heads = nn.ModuleList(nn.Linear(encoder.width, self.channels) for _ in encoder.layers)
        for name in ("text", "projection", "memory"):
            self.register_buffer(name, None)
        self.register_buffer("trained", torch.tensor(False))

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Return the last class token, then the patches of every tap: (B, 1 + L·R, width)."""
        encoder, taps, done = self.encoder, [], 0
        tokens = encoder.embed(pixels)
        for layer in encoder.layers:
            tokens, done = encoder.run(tokens, done, layer), layer
            taps.append(encoder.patches(tokens))
        last = encoder.run(tokens, done, encoder.depth)
        return torch.cat([last[:, :1], *taps], dim=1)

    def taps(self, prefix: Tensor) -> list[Tensor]:
        """Patch tokens of every tap, each (B, R, width)."""
        return list(prefix[:, 1:].chunk(len(self.heads), dim=1))

    def layer_maps(self, taps: list[Tensor], anchors: Tensor) -> Tensor:
        """Softmax of the upsampled logits, abnormal: anchors (B, 2, C) -> (L, B, S, S)."""
        pairs = zip(self.heads, taps, strict=True)
        margins = [margin(class_logits(head(tap), anchors, LOGIT_SCALE)) for head, tap in pairs]
        return probability(self._to_pixels(torch.stack(margins)))

    def class_score(self, prefix: Tensor, text: Tensor, projection: Tensor) -> Tensor:
        """Probability of abnormal by CLIP itself: (B,)."""
        image = self.encoder.final_norm(prefix[:, 0]) @ projection.T
        return probability(margin(LOGIT_SCALE * F.normalize(image, dim=-1) @ text.T))

    def forward(self, pixels: Tensor) -> Output:
        """Score a batch of 0..1 pixels (B, 3, S, S)."""
        assert self.text is not None
        assert self.projection is not None
        prefix = self.encode(pixels)
        score = self.class_score(prefix, self.text, self.projection)
        taps, maps = self.taps(prefix), pixels.new_zeros(pixels[:, 0].shape)
        if self.trained:
            maps = self.layer_maps(taps, self.text.expand(pixels.shape[0], -1, -1)).mean(dim=0)
        if self.memory is not None:
            pairs = zip(taps, self.memory, strict=True)
            distances = torch.stack([nearest_distance(tap, rows) for tap, rows in pairs])
            maps = (maps + self._to_pixels(distances.mean(dim=0))) / 2
            score = (score + maps.flatten(1).amax(dim=1)) / 2
        return Output(score, maps)

    def _to_pixels(self, values: Tensor) -> Tensor:
        return upsample(values, self.encoder.input_px, self.encoder.patch_px, "corners")


def build(encoder: Encoder, options: Options) -> AprilGAN:
    """Build the model at its start."""
    return AprilGAN(encoder)


def fit(model: AprilGAN, images: LabelledImages, job: Job) -> Fitted:
    """Train the linear layers where there are masks; remember the normal images of a target."""
    has_masks = bool((images.has_mask & images.abnormal).any())
    if job.zero_shot and not has_masks:
        raise InputError(
            "APRIL-GAN learns from masks and none of the source domains has any: add one that has."
        )
    tower = tower_for(job, model.channels, model.device)
    model.projection = tower.visual_projection.clone()
    model.text, features = features_of(tower, images, job.options.domain, job.zero_shot)
    copied = has_masks and not job.zero_shot and job.options.copies
    given = images.with_copies() if copied else images
    if job.zero_shot:  # a memory would need the others too
        given = images.only_supervised()
    store = job.encoded(model, given)
    mean = _train(model, given, store, features, job) if has_masks else 0.0
    model.trained.fill_(has_masks)
    if job.zero_shot:
        return Fitted({"loss": mean})
    model.owner = _remember(model, images, store, COPIES if copied else 1)
    return Fitted({"loss": mean})


def _train(
    model: AprilGAN, images: LabelledImages, store: FeatureStore, features: Tensor, job: Job
) -> float:
    options, device = job.options, model.device
    supervised = images.has_mask.nonzero().flatten()

    def loss(indices: list[int]) -> Tensor:
        chosen = supervised[indices].tolist()
        anchors = anchors_of(features, images, chosen)
        maps = model.layer_maps(model.taps(store[chosen].to(device)), anchors)
        masks = images.masks[chosen].to(device).repeat(len(maps), 1, 1)
        return segmentation_loss(maps.flatten(0, 1), masks).sum() / len(chosen)

    epochs = options.epochs or (ZERO_SHOT_EPOCHS if job.zero_shot else FEW_SHOT_EPOCHS)
    return train(
        model,
        loss,
        torch.optim.Adam(model.heads.parameters(), lr=options.learning_rate, betas=BETAS),
        len(supervised),
        job,
        epochs=epochs,
    )


@torch.no_grad()
def _remember(model: AprilGAN, images: LabelledImages, store: FeatureStore, copies: int) -> Tensor:
    """Keep the untouched patches of normal images; returns which image each row comes from."""
    normals = images.positions(abnormal=False)
    taps = model.taps(store[[copies * i for i in normals]].to(model.device))
    model.memory = torch.stack([build_memory(tap) for tap in taps])
    return images.origin[normals].repeat_interleave(taps[0].shape[1])
