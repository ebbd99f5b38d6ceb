"""MadCLIP: a normal and an abnormal adapter per layer beside a frozen CLIP, and learned prompts.

Both adapters' tokens are compared with the same two text directions t; the margins

    z_n = O_n · (t_n − t_a)        z_a = O_a · (t_a − t_n)

are the logits of the two classes, without a scale.

It is fitted on sixteen copies of an image: the benchmark's eleven, four zooms and a change of
colour.
"""

from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample

from recap.config import Section
from recap.data.augment import COPIES, augment
from recap.methods._prompts import Place, prompts_for, subject_of, text_channels, train_with_prompts
from recap.methods.base import Output, Scorer
from recap.methods.fitting import Fitted, Job
from recap.methods.images import LabelledImages
from recap.methods.recap.adapters import SLOPE
from recap.methods.recap.losses import segmentation_loss
from recap.methods.recap.maps import upsample

ZOOMS = (1.1, 1.15, 1.2, 1.3)
JITTER = 0.2
"""Brightness and contrast are each multiplied by 1 ± this at most."""
JITTER_SEED = 111
GREY = (0.299, 0.587, 0.114)
SIXTEEN = COPIES + len(ZOOMS) + 1


def with_sixteen_copies(images: LabelledImages) -> LabelledImages:
    """Sixteen fixed copies of every image, those of one image together."""
    pixels, masks = images.stack(range(len(images))), images.masks
    copies, marks = augment(pixels, masks)
    groups = [(copies.unflatten(0, (-1, COPIES)), marks.unflatten(0, (-1, COPIES)))]
    singles = [*(zoom(pixels, masks, factor) for factor in ZOOMS), (jitter(pixels), masks)]
    groups += [(image[:, None], mask[:, None]) for image, mask in singles]
    all_pixels, all_masks = (torch.cat(parts, dim=1) for parts in zip(*groups, strict=True))
    return images.repeated(all_pixels.flatten(0, 1), all_masks.flatten(0, 1), SIXTEEN)


def zoom(pixels: Tensor, masks: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Magnify the middle of images (N, 3, S, S) and masks (N, S, S)."""
    stacked = torch.cat([pixels, masks.unsqueeze(1).to(pixels.dtype)], dim=1)
    theta = stacked.new_tensor([[1 / factor, 0, 0], [0, 1 / factor, 0]])
    grid = affine_grid(theta.expand(len(stacked), 2, 3), list(stacked.shape), align_corners=False)
    magnified = grid_sample(stacked, grid, mode="bilinear", align_corners=False)
    return magnified[:, :3], magnified[:, 3] > 0.5


def jitter(pixels: Tensor) -> Tensor:
    """Brightness and contrast of (N, 3, S, S), all alike, from a seed that never changes."""
    generator = torch.Generator().manual_seed(JITTER_SEED)
    brightness, contrast = 1 + JITTER * (2 * torch.rand(2, generator=generator) - 1)
    bright = brightness * pixels
    grey = (bright * bright.new_tensor(GREY).view(3, 1, 1)).sum(dim=1, keepdim=True)
    middle = grey.mean(dim=(2, 3), keepdim=True)
    return (middle + contrast * (bright - middle)).clamp(0, 1)


NORMAL = (
    "{}",
    "healthy {}",
    "unremarkable {}",
    "intact {}",
    "{} without findings",
    "{} without disease",
    "{} without lesion",
)
ABNORMAL = (
    "abnormal {}",
    "diseased {}",
    "injured {}",
    "{} with findings",
    "{} with disease",
    "{} with a lesion",
    "{} with a defect",
)
PLACES: tuple[Place, ...] = ("end", "front", "middle")
STATEMENT = (
    "MadCLIP: normal and abnormal adapters beside a frozen CLIP encoder, compared with two text "
    "directions from learned prompts."
)
OFFICIAL: dict[str, Any] = {
    "encoder": {"name": "clip-vit-l14-336", "input_px": 240, "normalise": "unit"},
    "options": {"epochs": 60, "copies": 16, "causal": False},
}


class Options(Section):
    """Settings of MadCLIP."""

    domain: str = ""
    """The subject of the images, for the prompts. None means the name that the support comes with;
    zero-shot, and without a name, "medical image"."""
    epochs: Annotated[int, Field(ge=1)] = 50
    batch_size: Annotated[int, Field(ge=1)] = 16
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    copies: Literal[1, 11, 16] = 11
    """Of every support image; zero-shot fits make none."""
    causal: bool = True
    """Text tokens see what precedes them, as CLIP was trained; the published code lets all see
    all, and then all 77 have to be computed, not just those up to the end of the prompts."""


class MadAdapter(nn.Module):
    """One layer, one class: a shared layer, then a head for detection and one for segmentation."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.shared = nn.Linear(width, width, bias=False)
        self.det = nn.Linear(width, channels, bias=False)
        self.seg = nn.Linear(width, channels, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, R, width) -> unit tokens of detection and segmentation (B, 2, R, C)."""
        hidden = F.leaky_relu(self.shared(tokens), SLOPE)
        # The published InstanceNorm1d sees (tokens, batch, channels): a norm over the channels.
        hidden = F.layer_norm(hidden, hidden.shape[-1:])
        heads = [F.leaky_relu(head(hidden), SLOPE) for head in (self.det, self.seg)]
        return F.normalize(torch.stack(heads, dim=1), dim=-1)


class MadCLIP(Scorer):
    """The adapters, and how their tokens become a score and a map."""

    text: Tensor | None  # (2, C)
    seg_trained: Tensor
    """Whether there were masks: the map comes from the segmentation heads, else from detection."""
    score_is_maximum: Tensor
    """Whether the image score is the highest value of the map, or the mean over the patches."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder, self.channels = encoder, text_channels(encoder)
        self.normal, self.abnormal = (
            nn.ModuleList(MadAdapter(encoder.width, self.channels) for _ in encoder.layers)
            for _ in range(2)
        )
        self.register_buffer("text", None)
        self.register_buffer("seg_trained", torch.tensor(False))
        self.register_buffer("score_is_maximum", torch.tensor(False))

    def encode(self, pixels: Tensor) -> Tensor:
        """Patch tokens of the tapped layers: (B, L, R, width)."""
        return self.encoder.taps(pixels)

    def logits(self, taps: Tensor, text: Tensor) -> Tensor:
        """z_n and z_a: (B, L, R, width), (2, C) -> (B, L, 2 tasks, R, 2 classes)."""
        contrast = text[0] - text[1]
        layers = [
            torch.stack([normal(tokens) @ contrast, abnormal(tokens) @ -contrast], dim=-1)
            for tokens, normal, abnormal in zip(
                taps.unbind(1), self.normal, self.abnormal, strict=True
            )
        ]
        return torch.stack(layers, dim=1)

    def layer_maps(self, logits: Tensor) -> Tensor:
        """Softmax of the upsampled logits, abnormal: (..., R, 2) -> (..., S, S).

        The published map, half of (1 − p_n) and half of p_a, is p_a, as the two add up to one.
        """
        margin = logits[..., 1] - logits[..., 0]
        encoder = self.encoder
        return upsample(margin, encoder.input_px, encoder.patch_px, "corners").sigmoid()

    def forward(self, pixels: Tensor) -> Output:
        """Score a batch of 0..1 pixels (B, 3, S, S)."""
        assert self.text is not None
        det, seg = self.logits(self.encode(pixels), self.text).unbind(2)
        maps = self.layer_maps(seg if self.seg_trained else det).mean(1)
        patches = (det[..., 1] - det[..., 0]).sigmoid()  # (B, L, R)
        score = maps.flatten(1).amax(1) if self.score_is_maximum else patches.mean((1, 2))
        return Output(score, maps)


def build(encoder: Any, options: Options) -> MadCLIP:
    """Build the model at its start."""
    return MadCLIP(encoder)


def fit(model: MadCLIP, images: LabelledImages, job: Job) -> Fitted:
    """Train adapters and prompts together."""
    # Prompts that are learned on other domains are for a target of any kind, unless told of one.
    subject = subject_of(job.options.domain)
    phrases = [[p.format(subject) for p in group] for group in (NORMAL, ABNORMAL)]
    learned = prompts_for(job, model, (phrases[0], phrases[1]), PLACES)
    if not job.zero_shot and job.options.copies > 1:
        images = with_sixteen_copies(images) if job.options.copies == 16 else images.with_copies()
    store = job.encoded(model, images)

    def loss(indices: list[int], text: Tensor) -> Tensor:
        logits = model.logits(store[indices].to(model.device), text)
        return batch_loss(model, logits, images, indices)

    mean = train_with_prompts(model, learned, loss, len(images), job)
    has_masks = bool(images.has_mask.any())
    model.seg_trained.fill_(has_masks)
    # The published rule is per domain; a zero-shot detector is for domains of either kind.
    model.score_is_maximum.fill_(has_masks and not job.zero_shot)
    return Fitted({"loss": mean})


def batch_loss(
    model: MadCLIP, logits: Tensor, images: LabelledImages, indices: list[int]
) -> Tensor:
    """Detection and, where there are masks, segmentation: summed over layers, mean over images."""
    det, seg = logits.unbind(2)
    device = logits.device
    losses = detection_loss(det, images.abnormal[indices].to(device)).sum(1)  # (B,)
    marked = images.has_mask[indices].nonzero().flatten().tolist()
    total = losses.sum()
    if marked:
        maps = model.layer_maps(seg[marked])  # (M, L, S, S)
        masks = images.masks[[indices[i] for i in marked]].to(device)
        total = total + segmentation_loss(maps, masks[:, None].expand_as(maps)).sum()
    return total / len(indices)


def detection_loss(logits: Tensor, abnormal: Tensor) -> Tensor:
    """−log σ(±z) of both classes, mean over the patches: (B, L, R, 2), (B,) -> (B, L)."""
    sign = torch.where(abnormal, 1.0, -1.0).view(-1, 1, 1)
    own = torch.stack([-sign * logits[..., 0], sign * logits[..., 1]], dim=-1)
    return -F.logsigmoid(own).sum(-1).mean(-1)
