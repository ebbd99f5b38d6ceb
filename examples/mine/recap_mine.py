"""A method of one's own: how far a patch is from all remembered normal ones, in one layer."""

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from recap.config import Section
from recap.methods.base import Evidence, Scorer, combine, top_k_mean
from recap.methods.fitting import Fitted, Job
from recap.methods.images import LabelledImages
from recap.methods.recap.maps import upsample
from recap.methods.registry import Method

METHOD = Method("mine", "Mine", zero_shot="no", normal_only=True, module_name=__name__)
STATEMENT = "Mine: distances of the last layer's patches to those of the normal images."
OFFICIAL: dict[str, Any] = {}


class Options(Section):
    """What a user may set, as `--set options.top_share=0.1`."""

    top_share: Annotated[float, Field(gt=0, le=1)] = 0.05


class Mine(Scorer):
    """The remembered patches (M, width)."""

    def __init__(self, encoder: Any, options: Options) -> None:
        super().__init__()
        self.encoder, self.options = encoder, options
        self.register_buffer("memory", None)

    def encode(self, pixels: Tensor) -> Tensor:
        return F.normalize(self.encoder.taps(pixels)[:, -1], dim=-1)  # (B, R, width)

    def evidence(self, pixels: Tensor, parts: bool = False) -> list[Evidence]:
        distance = (1 - (self.encode(pixels) @ self.memory.T).amax(dim=-1)) / 2  # (B, R)
        score, one = top_k_mean(distance, self.options.top_share), distance.new_ones(1)
        drawn = upsample(distance, self.encoder.input_px, self.encoder.patch_px, "centres")
        return [Evidence("memory", score[None], one, 1.0, drawn[None], one, 1.0)]

    def forward(self, pixels: Tensor) -> Any:
        return combine(self.evidence(pixels))


def build(encoder: Any, options: Options) -> Mine:
    return Mine(encoder, options)


@torch.no_grad()
def fit(model: Mine, images: LabelledImages, job: Job) -> Fitted:
    normal = images.only_normal()
    tokens = job.encoded(model, normal)[list(range(len(normal)))].to(model.device)
    model.memory = tokens.flatten(0, 1)
    model.owner = torch.arange(len(normal)).repeat_interleave(tokens.shape[1])
    return Fitted()
