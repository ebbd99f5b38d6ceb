"""Other methods as they stand after fitting, without the fitting: noise costs as much as data."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from recap.config import Settings
from recap.data.augment import COPIES
from recap.encoders.draws import own_draws
from recap.methods.fitting import encoder_of
from recap.methods.recap.scorer import Scorer
from recap.methods.registry import PEERS
from recap.methods.settings import resolve_peer


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
