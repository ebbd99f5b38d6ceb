"""AnomalyDINO (Damm et al., WACV 2025): nearest neighbours among a transformer's last tokens.

A memory of all patches of the normal images and of their rotations. Nothing is trained, and
abnormal images are not used. Background patches may be left out of what is scored: the
foreground are those on one side of the first principal component of an image.
"""

from contextlib import closing
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from recap.config import Section
from recap.encoders.vit import Encoder
from recap.methods._tokens import checked_layer, layer_tokens, rotate, smooth_map
from recap.methods.base import Output, Scorer
from recap.methods.features import encode_each
from recap.methods.fitting import Fitted, Job
from recap.methods.images import LabelledImages
from recap.methods.recap.memory import build_memory, nearest_distance

BORDER = 0.2
"""Part of the side to each edge that is not the centre."""
CENTRE_KEPT = 0.35
"""At most this share of the centre kept: the object must be on the component's other side."""


def foreground(tokens: Tensor, threshold: float) -> Tensor:
    """Find the patches of an image that show its object: (R, C) -> (R,) bool.

    The first component has no sign of its own: it is turned so that the centre of the picture is
    on its positive side. What is kept is made larger by one patch and its small holes are closed.
    """
    grid = round(len(tokens) ** 0.5)
    component = first_component(tokens).view(grid, grid)
    component = component * (1 if central(component).mean() >= 0 else -1)
    kept = component > threshold
    if central(kept).sum() <= CENTRE_KEPT * central(kept).numel():
        kept = -component > threshold
    grown = _dilate(_dilate(kept.float()[None]))
    return -_dilate(-grown).flatten() > 0.5


def first_component(tokens: Tensor) -> Tensor:
    """Coordinates of rows along their first principal component, of either sign: (R, C) -> (R,).

    From the smaller of the two matrices of products; the exact one, so that nothing is random.
    """
    centred = tokens - tokens.mean(dim=0)
    wide = centred.shape[1] > centred.shape[0]
    products = centred @ centred.T if wide else centred.T @ centred
    vector = torch.linalg.eigh(products)[1][:, -1]
    return centred @ (F.normalize(centred.T @ vector, dim=0) if wide else vector)


def shows_an_object(tokens: Tensor, threshold: float) -> bool:
    """Tell if masking makes sense for images such as this one: (R, C).

    It does where most of the centre is kept and most of the outermost patches are not. A texture
    that fills the picture, or an object that is not in its middle, is better not masked.
    """
    grid = round(len(tokens) ** 0.5)
    kept = foreground(tokens, threshold).view(grid, grid)
    frame = torch.ones_like(kept)
    frame[1:-1, 1:-1] = False
    return bool(central(kept).float().mean() > 0.5 and kept[frame].float().mean() < 0.5)


def central(values: Tensor) -> Tensor:
    """Cut out the centre of a square (g, g)."""
    grid = len(values)
    inner = slice(int(grid * BORDER), max(int(grid * (1 - BORDER)), int(grid * BORDER) + 1))
    return values[inner, inner]


def _dilate(mask: Tensor) -> Tensor:
    return F.max_pool2d(mask, 3, stride=1, padding=1)


STATEMENT = (
    "AnomalyDINO: distances of the encoder's last patch tokens to all those of the normal images "
    "and of their rotations. Nothing was trained; abnormal images were not used."
)
OFFICIAL: dict[str, Any] = {"encoder": {"name": "dinov2-small", "input_px": 448}}
MASKED_FAMILIES = ("Dinov2Model", "Dinov2WithRegistersModel")
"""Whose tokens the threshold of the masks was published for."""


class Options(Section):
    """AnomalyDINO's own settings."""

    layer: Annotated[int, Field(ge=1)] | None = None
    """The block whose tokens are compared, counted from 1; none means the last."""
    rotations: Annotated[int, Field(ge=1, le=64)] = 8
    """Copies of each normal image, turned by equal angles; 1 is the image alone."""
    masking: Literal["auto", "on", "off"] = "auto"
    """Whether only the object's patches are scored; auto looks at the first normal image, and is
    off for encoders other than DINOv2."""
    mask_threshold: Annotated[float, Field(ge=0)] = 10.0
    """The start of the object on the first principal component, in the tokens' own unit."""
    top_share: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of the patches whose mean is the image score."""
    sigma_px: Annotated[float, Field(ge=0)] = 4.0
    """Smoothing of the maps; 0 is none."""


class AnomalyDINO(Scorer):
    """All normal patches, and distances to them."""

    source = "memory"
    mirrored = (-1,)

    memory: Tensor | None
    masked: Tensor
    """Whether background patches are left out, decided at fitting."""

    def __init__(self, encoder: Encoder, options: Options) -> None:
        super().__init__()
        self.encoder, self.options = encoder, options
        self.layers = checked_layer(options.layer or encoder.depth, encoder)
        self.register_buffer("memory", None)
        self.register_buffer("masked", torch.tensor(False))

    def encode(self, pixels: Tensor) -> Tensor:
        """Tokens after one block and the encoder's last norm: (B, 3, S, S) -> (B, R, width)."""
        return self.encoder.final_norm(layer_tokens(self.encoder, pixels, self.layers)[:, 0])

    def distances(self, tokens: Tensor, memory: Tensor) -> Tensor:
        """Cosine distance of each patch to the memory, nought in the background: (B, R)."""
        farness = nearest_distance(tokens, memory)
        if not bool(self.masked):
            return farness
        threshold = self.options.mask_threshold
        return farness * torch.stack([foreground(image, threshold) for image in tokens])

    def map_of(self, farness: Tensor) -> Tensor:
        """Distances of patches (B, R) -> map (B, S, S)."""
        return smooth_map(farness, self.encoder, self.options.sigma_px)

    def forward(self, pixels: Tensor) -> Output:
        """Score an image by the mean of the largest distances of its patches."""
        assert self.memory is not None, "fit comes first"
        farness = self.distances(self.encode(pixels), self.memory)
        top = max(1, int(self.options.top_share * farness.shape[1]))
        score = farness.topk(top, dim=1).values.mean(dim=1)
        return Output(score, self.map_of(farness))


def build(encoder: Encoder, options: Options) -> AnomalyDINO:
    """Build the model without its memory."""
    return AnomalyDINO(encoder, options)


@torch.no_grad()
def fit(model: AnomalyDINO, images: LabelledImages, job: Job) -> Fitted:
    """Remember all patches of the normal images at every angle."""
    normal, turns = images.only_normal(), model.options.rotations

    def turned(number: int) -> Tensor:
        index, turn = divmod(number, turns)
        return rotate(normal.pixels(index), 360 * turn / turns)

    encoded = []
    with closing(encode_each(model, turned, range(len(normal) * turns))) as every:
        for number, one in enumerate(every):
            if number % turns == 0:
                job.progress("encode", number // turns, len(normal), "")
            encoded.append(one)
    job.progress("encode", len(normal), len(normal), "")
    tokens = torch.cat(encoded)  # (K * turns, R, C)
    model.memory = build_memory(tokens)
    model.masked.fill_(masking_makes_sense(model, tokens[0]))
    model.owner = torch.arange(len(normal)).repeat_interleave(turns * tokens.shape[1])
    return Fitted()


def masking_makes_sense(model: AnomalyDINO, tokens: Tensor) -> bool:
    """Ask the settings about masking or, if they leave it open, the first normal image (R, C)."""
    options = model.options
    if options.masking != "auto":
        return options.masking == "on"
    if model.encoder.family.model_class not in MASKED_FAMILIES:
        return False
    return shows_an_object(tokens, options.mask_threshold)
