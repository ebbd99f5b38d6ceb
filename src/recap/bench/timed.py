"""Methods for `recap bench speed` to time: as they stand after fitting, without the fitting.

Memories, texts and directions are noise, which costs as much as data.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.data.augment import COPIES
from recap.encoders.load import seeded
from recap.encoders.vit import Encoder
from recap.methods.recap.settings import RecapSettings
from recap.methods.registry import changed, find_method, resolve_settings
from recap.types import Mode


def timed_model(method: str, encoder: Any, settings: RecapSettings, shots: int) -> nn.Module:
    """A model that costs what a fitted one costs; its scores mean nothing."""
    row = find_method(method)
    if row.is_ours:
        own = changed(settings, **row.fixed)
    else:
        random = settings.encoder.random_weights
        kept = {"input_px": encoder.input_px, "random_weights": random}
        own = resolve_settings(method=method, seed=settings.seed, encoder=kept)
    if hasattr(row.module, "load_encoder"):
        # Its own network; trained or not, it costs the same.
        chosen = own.encoder.model_copy(update={"random_weights": True})
        encoder = row.load_encoder(chosen, settings.seed)
    mode: Mode = "zero-shot" if not shots else "normal-only" if row.normal_only else "few-shot"
    # Of few-shot fits, what labels taught costs most.
    variant = row.choose_variant(own, mode, has_masks=not shots)
    with seeded(settings.seed):
        model = row.build(encoder, own, variant)
        model.settle()
        FILL.get(row.family, lambda model, shots: None)(model, shots)
    return model.eval()


def can_run(method: str, shots: int) -> bool:
    """Tell whether a method works with this number of shots."""
    return find_method(method).zero_shot != "no" or shots > 0


def runs_on(method: str, encoder: Encoder) -> bool:
    """Tell whether a method can use this encoder: those with text need a text tower beside it."""
    return not find_method(method).uses_text or encoder.family.model_class == "CLIPVisionModel"


def run_bare(encoder: Encoder, pixels: Tensor) -> Tensor:
    """The floor that every method pays: embedding and all blocks, nothing tapped."""
    return encoder.run(encoder.embed(pixels), 0, encoder.depth)


def added_parameters(model: nn.Module, encoder: Encoder) -> int:
    """Trainable parameters that a method puts on top of its encoder."""
    frozen = {id(parameter) for parameter in encoder.parameters()}
    return sum(p.numel() for p in model.parameters() if p.requires_grad and id(p) not in frozen)


def _recap(model: Any, shots: int) -> None:
    layers, width = len(model.encoder.layers), model.encoder.width
    if model.memory is not None:
        adapters, coreset = model.scores.adapters, model.settings.memory.coreset
        channels = len(adapters[0].down.weight) if adapters else width
        rows = min(shots * _patches(model), coreset or shots * _patches(model))
        model.memory.rows = _rows(layers, len(model.branches), rows, channels)
        if model.memory.beyond_pool is not None:
            model.memory.normal = torch.ones(2, layers)
    whole = model.find_source("appearance")
    if whole is not None:
        whole.direction = torch.zeros((2 if shots else 1) * layers * width + 1)


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
    "recap": _recap,
    "uniadet": _uniadet,
    "patchcore": _patchcore,
    "anomalydino": _anomalydino,
    "april_gan": _april_gan,
    "mvfa": _mvfa,
    "madclip": _learned_text,
    "mediclip": _learned_text,
    "dra": _dra,
}
"""What fitting would leave in a model: noise in its place. Others are timed as they are built."""


def _rows(*shape: int) -> Tensor:
    return F.normalize(torch.randn(shape), dim=-1)


def _patches(model: Any) -> int:
    return int(model.encoder.grid**2)
