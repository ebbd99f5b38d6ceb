"""What `recap bench speed` times: methods as they stand after fitting, without the fitting."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.benchmark.cells import with_changes
from recap.benchmark.timed_peers import build_peer
from recap.config import Settings
from recap.data.augment import COPIES
from recap.encoders.vit import Encoder
from recap.errors import InputError
from recap.methods.recap.build import new_model
from recap.methods.recap.head import ReCAP, Teacher
from recap.methods.registry import PEERS
from recap.training.zeroshot import choose_teacher


@dataclass(frozen=True)
class TimedMethod:
    """How a method is built for timing, and what it can do."""

    build: Callable[[Encoder, Settings, int], nn.Module]
    """(encoder, settings, shots) -> a model whose forward takes pixels to an `Output`."""
    zero_shot: bool = True


def _recap(encoder: Encoder, settings: Settings, shots: int) -> nn.Module:
    # What labels taught costs most: the image as a whole has a share in its score, and lesions
    # that were made up may have taught a second branch.
    by_labels: Teacher | None = None if settings.training.made_up_lesions else "labels"
    taught_by = by_labels if shots else choose_teacher(settings, has_masks=True)
    model = new_model(settings, encoder=encoder, taught_by=taught_by)
    _with_memory(model, shots)
    taught = settings.model.branches == "taught"
    if shots and taught and settings.memory.score == "standardised":
        model.normal_distance = torch.ones(2, len(encoder.layers))
    if shots and taught and settings.model.appearance_weight:
        model.appearance_direction = torch.zeros(2 * len(encoder.layers) * encoder.width + 1)
    if not shots and settings.model.zero_shot_score == "class_tokens":
        model.class_direction = torch.zeros(len(encoder.layers) * encoder.width + 1)
    return model


def _normal_only(encoder: Encoder, settings: Settings, shots: int) -> nn.Module:
    model = new_model(settings, encoder=encoder, taught_by="masks")
    model.drop_prototypes()
    return _with_memory(model, shots)


def _nearest(encoder: Encoder, settings: Settings, shots: int) -> nn.Module:
    return _with_memory(new_model(settings, trained_head=False, encoder=encoder), shots)


def _static(encoder: Encoder, settings: Settings, shots: int) -> nn.Module:
    return _recap(encoder, with_changes(settings, "model", conditioning="static"), shots)


TIMED: dict[str, TimedMethod] = {
    "recap": TimedMethod(_recap),
    "normal_only": TimedMethod(_normal_only, zero_shot=False),
    "nearest": TimedMethod(_nearest, zero_shot=False),
    "static": TimedMethod(_static),
    **{
        peer.name: TimedMethod(partial(build_peer, peer.name), zero_shot=peer.zero_shot != "no")
        for peer in PEERS.values()
    },
}


def timed_model(method: str, encoder: Encoder, settings: Settings, shots: int) -> nn.Module:
    """A model that costs what a fitted one costs; its scores mean nothing."""
    return _known(method).build(encoder, settings, shots).eval()


def can_run(method: str, shots: int) -> bool:
    """Tell whether a method works with this number of shots."""
    return _known(method).zero_shot or shots > 0


def runs_on(method: str, encoder: Encoder) -> bool:
    """Tell whether a method can use this encoder: those with text need a text tower beside it."""
    needs_text = method in PEERS and PEERS[method].uses_text
    return not needs_text or encoder.family.model_class == "CLIPVisionModel"


def run_bare(encoder: Encoder, pixels: Tensor) -> Tensor:
    """The floor that every method pays: embedding and all blocks, nothing tapped."""
    return encoder.run(encoder.embed(pixels), 0, encoder.depth)


def added_parameters(model: nn.Module, encoder: Encoder) -> int:
    """Trainable parameters that a method puts on top of its encoder."""
    frozen = {id(parameter) for parameter in encoder.parameters()}
    return sum(p.numel() for p in model.parameters() if p.requires_grad and id(p) not in frozen)


def _known(method: str) -> TimedMethod:
    if method not in TIMED:
        raise InputError(f"Unknown method '{method}'. Choose from: {', '.join(TIMED)}, or all.")
    return TIMED[method]


def _with_memory(model: ReCAP, shots: int) -> ReCAP:
    """Put as many rows into the memory as fitting on K normal images would; noise costs alike."""
    if shots == 0:
        return model
    encoder, memory = model.encoder, model.settings.memory
    rows = shots * encoder.grid**2
    if memory.augmented and model.settings.training.augment:
        rows *= COPIES
    shape = (
        len(encoder.layers),
        model.branches if model.has_adapters else 1,
        min(rows, memory.coreset or rows),
        model.channels if model.has_adapters else encoder.width,
    )
    seeded = torch.Generator().manual_seed(model.settings.seed)
    model.memory = F.normalize(torch.randn(shape, generator=seeded), dim=-1)
    return model
