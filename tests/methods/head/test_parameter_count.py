"""The published size, and that of every other conditioning, on an encoder without memory."""

import pytest
import torch
import transformers

from recap.encoders.registry import ENCODERS
from recap.encoders.vit import Encoder
from recap.methods.recap.regimes import build
from recap.methods.recap.settings import Conditioning
from recap.methods.registry import resolve_settings

WIDTH, C = 1024, 768
PAIRS = 8  # four layers, two branches
LAYER_WEIGHTS = 8  # θ of both branches
WRITE_BACK, SIDE = PAIRS * 2 * WIDTH * C, PAIRS * WIDTH * C
MATRICES, PROTOTYPES, GATES = PAIRS * 2 * C * C, PAIRS * 2 * C, PAIRS * 2


@pytest.fixture(scope="module")
def clip_large() -> Encoder:
    entry = ENCODERS["clip-vit-l14-336"]
    with torch.device("meta"):
        model = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**entry.config))
        return Encoder(model, name=entry.name, checksum="", input_px=240)


def count(encoder: Encoder, preset: str, conditioning: Conditioning) -> int:
    with torch.device("meta"):
        model = build(
            encoder, resolve_settings(preset, model={"conditioning": conditioning}), "both"
        )
    return model.num_trainable_parameters


def test_the_published_number(clip_large: Encoder) -> None:
    assert count(clip_large, "paper", "gated") == 22_032_408


@pytest.mark.parametrize(("preset", "adapters"), [("paper", WRITE_BACK), ("fast", SIDE)])
@pytest.mark.parametrize(
    ("conditioning", "prototypes"),
    [
        ("gated", MATRICES + PROTOTYPES + GATES),
        ("bounded", MATRICES + PROTOTYPES),
        ("unbounded", MATRICES + PROTOTYPES),
        ("static", PROTOTYPES),
        ("tokens", 2 * C),  # one pair for all layers and branches
    ],
)
def test_every_conditioning(
    clip_large: Encoder,
    preset: str,
    adapters: int,
    conditioning: Conditioning,
    prototypes: int,
) -> None:
    assert count(clip_large, preset, conditioning) == adapters + prototypes + LAYER_WEIGHTS


def test_uniform_layers_have_no_weights_to_train(tiny_encoder: Encoder) -> None:
    learned, uniform = (
        build(tiny_encoder, resolve_settings("fast", model={"layer_fusion": fusion}), "both")
        for fusion in ("learned", "uniform")
    )
    assert uniform.num_trainable_parameters == learned.num_trainable_parameters - LAYER_WEIGHTS
    assert uniform.state_dict().keys() == learned.state_dict().keys()


def test_nothing_is_trained_without_a_head(tiny_encoder: Encoder) -> None:
    model = build(tiny_encoder, resolve_settings(), "nearest")
    assert model.num_trainable_parameters == 0


@pytest.mark.parametrize(("bottleneck", "channels"), [(None, 32), (7, 7), (48, 48)])
def test_narrow_encoders_have_narrow_tokens(
    tiny_encoder: Encoder, bottleneck: int | None, channels: int
) -> None:
    model = build(tiny_encoder, resolve_settings("fast", model={"bottleneck": bottleneck}), "both")
    assert len(model.maps.adapters[0].down.weight) == channels
    per_pair = 32 * channels + 2 * channels * channels + 2 * channels + 2
    assert model.num_trainable_parameters == PAIRS * per_pair + LAYER_WEIGHTS
