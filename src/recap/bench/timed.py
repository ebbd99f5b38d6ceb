"""What `recap bench speed` times: methods as after fitting, without the fitting.

Noise costs as much as data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.bench.cells import with_changes
from recap.config import Settings
from recap.data.augment import COPIES
from recap.encoders.draws import own_draws
from recap.encoders.vit import Encoder
from recap.errors import InputError
from recap.methods.fitting import encoder_of
from recap.methods.recap.build import new_model
from recap.methods.recap.head import ReCAP, Teacher
from recap.methods.recap.scorer import Scorer
from recap.methods.registry import PEERS
from recap.methods.settings import resolve_peer
from recap.training.zeroshot import choose_teacher


def build_peer(name: str, encoder: Any, settings: Settings, shots: int) -> Scorer:
    """A method on the given encoder, with memories of K images and texts of noise."""
    peer = PEERS[name]
    own = resolve_peer(
        name,
        seed=settings.seed,
        encoder={"input_px": encoder.input_px, "random_weights": settings.encoder.random_weights},
    )
    if hasattr(peer.module, "load_encoder"):
        # Its own network; trained or not, it costs the same.
        chosen = own.encoder.model_copy(update={"random_weights": True})
        encoder = encoder_of(peer, chosen, settings.seed)
    with own_draws(settings.seed):
        model: Scorer = peer.module.build(encoder, peer.module.Options(**own.options))
        FILL.get(name, lambda model, shots: None)(model, shots)
    return model


def _uniadet(model: Any, shots: int) -> None:
    if shots and model.options.memory_weight > 0:
        model.memory = _rows(len(model.levels), shots * _patches(model), model.encoder.width)


def _patchcore(model: Any, shots: int) -> None:
    rows = max(1, int(model.options.coreset * shots * _patches(model)))
    model.memory = _rows(rows, len(model.layers) * model.encoder.width)


def _anomalydino(model: Any, shots: int) -> None:
    rows = shots * model.options.rotations * _patches(model)
    model.memory = _rows(rows, model.encoder.width)


def _april_gan(model: Any, shots: int) -> None:
    encoder = model.encoder
    model.text = _rows(2, model.channels)
    model.projection = torch.randn(model.channels, encoder.width)
    model.trained.fill_(True)
    if shots:
        model.memory = _rows(len(encoder.layers), shots * _patches(model), encoder.width)


def _mvfa(model: Any, shots: int) -> None:
    model.text = _rows(2, model.channels)
    model.has_masks.fill_(True)
    if shots:
        rows = COPIES * shots * _patches(model)
        model.memory = _rows(len(model.encoder.layers), 2, rows, model.channels)


def _learned_text(model: Any, shots: int) -> None:
    model.text = _rows(2, model.channels)


def _dra(model: Any, shots: int) -> None:
    side = model.encoder.input_px
    with torch.no_grad():
        whole, half = model.features(torch.rand(1, 3, side, side))
    model.reference_whole, model.reference_half = whole[0], half[0]


FILL: dict[str, Callable[[Any, int], None]] = {
    "uniadet": _uniadet,
    "patchcore": _patchcore,
    "anomalydino": _anomalydino,
    "april_gan": _april_gan,
    "mvfa": _mvfa,
    "madclip": _learned_text,
    "mediclip": _learned_text,
    "dra": _dra,
}


def _rows(*shape: int) -> Tensor:
    return F.normalize(torch.randn(shape), dim=-1)


def _patches(model: Any) -> int:
    return int(model.encoder.grid**2)


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
