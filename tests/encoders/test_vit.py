"""Running the blocks ourselves must change nothing: every family against its own forward."""

from typing import Any

import pytest
import torch
import transformers

from recap.encoders.registry import FAMILIES
from recap.encoders.vit import Encoder, quarter_layers
from recap.errors import SettingsError

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 8,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "patch_size": 14,
}
EXTRA: dict[str, dict[str, Any]] = {
    "siglip2_vision_model": {"num_patches": 25},
    "dinov2_with_registers": {"num_register_tokens": 3},
    "dinov3_vit": {"num_register_tokens": 2},
}
NATIVE_PX = 70  # a grid of 5 × 5


def tiny(family: str) -> Any:
    torch.manual_seed(0)
    config_class = getattr(transformers, FAMILIES[family].config_class)
    sizes = {} if family == "siglip2_vision_model" else {"image_size": NATIVE_PX}
    config = config_class(**TINY, **sizes, **EXTRA.get(family, {}))
    model = getattr(transformers, FAMILIES[family].model_class)(config).eval()
    for parameter in model.parameters():  # zero-initialised tokens would hide mistakes
        if parameter.abs().max() == 0:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def own_forward(model: Any, family: str, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The hidden states that transformers itself reports."""
    if family == "siglip2_vision_model":
        patch, grid = 14, pixels.shape[-1] // 14
        rows = [
            pixels[:, :, y * patch : (y + 1) * patch, x * patch : (x + 1) * patch]
            .permute(0, 2, 3, 1)
            .reshape(len(pixels), -1)
            for y in range(grid)
            for x in range(grid)
        ]
        shapes = torch.tensor([[grid, grid]] * len(pixels))
        mask = torch.ones(len(pixels), grid * grid, dtype=torch.long)
        out = model(torch.stack(rows, 1), mask, shapes, output_hidden_states=True)
        return out.hidden_states
    takes_flag = family in ("clip_vision_model", "siglip_vision_model", "vit")
    flag = {"interpolate_pos_encoding": True} if takes_flag else {}
    return model(pixels, output_hidden_states=True, **flag).hidden_states


def wrap(model: Any, input_px: int, antialias: bool) -> Encoder:
    return Encoder(
        model, name="tiny", checksum="", input_px=input_px, antialias_positions=antialias
    )


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("input_px", [NATIVE_PX, 100, 45])
@torch.no_grad()
def test_tapped_states_equal_transformers_own(family: str, input_px: int) -> None:
    model, pixels = tiny(family), torch.rand(2, 3, input_px, input_px)
    states = own_forward(model, family, pixels)
    encoder = wrap(model, input_px, antialias=False)
    taps = encoder.taps(pixels)
    assert taps.shape == (2, 4, (input_px // 14) ** 2, 32)
    for index, layer in enumerate(encoder.layers):
        assert torch.equal(taps[:, index], states[layer][:, encoder.prefix_tokens :])


@pytest.mark.parametrize("family", sorted(FAMILIES))
@torch.no_grad()
def test_antialiased_positions_change_nothing_at_the_native_size(family: str) -> None:
    pixels = torch.rand(1, 3, NATIVE_PX, NATIVE_PX)
    native = wrap(tiny(family), NATIVE_PX, antialias=False).taps(pixels)
    assert torch.equal(wrap(tiny(family), NATIVE_PX, antialias=True).taps(pixels), native)


@pytest.mark.parametrize("family", ["clip_vision_model", "dinov2", "siglip_vision_model", "vit"])
@pytest.mark.parametrize("input_px", [100, 45])
@torch.no_grad()
def test_positions_are_resampled_bicubic_with_antialias(family: str, input_px: int) -> None:
    model = tiny(family)
    holder = getattr(model.embeddings, FAMILIES[family].positions or "")
    table = (holder.weight if hasattr(holder, "weight") else holder[0]).clone()
    skip = 0 if family == "siglip_vision_model" else 1
    square = table[skip:].reshape(5, 5, 32).permute(2, 0, 1)[None]
    side = input_px // 14
    expected = torch.nn.functional.interpolate(square, (side, side), mode="bicubic", antialias=True)
    black = torch.zeros(1, 3, input_px, input_px)
    zero_table = tiny(family)
    blank = getattr(zero_table.embeddings, FAMILIES[family].positions or "")
    (blank.weight if hasattr(blank, "weight") else blank).zero_()
    if family == "clip_vision_model":  # its layer norm would hide the sum
        model.pre_layrnorm = zero_table.pre_layrnorm = torch.nn.Identity()
    with_positions = wrap(model, input_px, antialias=True).embed(black)
    without = wrap(zero_table, input_px, antialias=True).embed(black)
    difference = (with_positions - without)[0, skip:].T.reshape(32, side, side)
    torch.testing.assert_close(difference, expected[0], atol=1e-6, rtol=0)


def test_own_mean_and_std_are_applied() -> None:
    model = tiny("dinov2")
    pixels = torch.rand(1, 3, NATIVE_PX, NATIVE_PX)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    encoder = Encoder(model, name="", checksum="", input_px=NATIVE_PX, mean=mean, std=std)
    shifted = (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    plain = wrap(tiny("dinov2"), NATIVE_PX, antialias=True)
    assert torch.equal(encoder.taps(pixels), plain.taps(shifted))


def test_encoder_stays_frozen_and_in_evaluation_mode() -> None:
    encoder = wrap(tiny("dinov2"), NATIVE_PX, antialias=True).train()
    assert not encoder.model.training
    assert not any(p.requires_grad for p in encoder.parameters())


@pytest.mark.parametrize(("depth", "layers"), [(24, (6, 12, 18, 24)), (12, (3, 6, 9, 12))])
def test_quarter_layers(depth: int, layers: tuple[int, ...]) -> None:
    assert quarter_layers(depth) == layers


@pytest.mark.parametrize("layers", [(), (0, 1), (2, 2), (3, 1), (9,)])
def test_impossible_layers_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(SettingsError, match="from 1 to 8"):
        Encoder(tiny("dinov2"), name="", checksum="", input_px=NATIVE_PX, layers=layers)


LAST_IS_NORMED = sorted(set(FAMILIES) - {"clip_vision_model", "siglip2_vision_model"})


@pytest.mark.parametrize("family", LAST_IS_NORMED)
@torch.no_grad()
def test_the_final_norm_ends_in_transformers_own_last_state(family: str) -> None:
    model, pixels = tiny(family), torch.rand(2, 3, NATIVE_PX, NATIVE_PX)
    expected = model(pixels).last_hidden_state
    encoder = wrap(model, NATIVE_PX, antialias=True)
    last = encoder.run(encoder.embed(pixels), 0, encoder.depth)
    assert torch.equal(encoder.final_norm(last), expected)


@torch.no_grad()
def test_the_final_norm_of_clip_gives_its_pooled_class_token() -> None:
    model, pixels = tiny("clip_vision_model"), torch.rand(2, 3, NATIVE_PX, NATIVE_PX)
    expected = model(pixels).pooler_output
    encoder = wrap(model, NATIVE_PX, antialias=True)
    last = encoder.run(encoder.embed(pixels), 0, encoder.depth)
    assert torch.equal(encoder.final_norm(last[:, 0]), expected)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_has_a_final_norm(family: str) -> None:
    assert isinstance(wrap(tiny(family), NATIVE_PX, True).final_norm, torch.nn.LayerNorm)


def class_token(model: Any) -> torch.Tensor:
    held = getattr(model.embeddings, "class_embedding", None)
    return model.embeddings.cls_token[0] if held is None else held[None]


@pytest.mark.parametrize("family", sorted(f for f in FAMILIES if not f.startswith("siglip")))
@pytest.mark.parametrize(("input_px", "antialias"), [(NATIVE_PX, True), (100, True), (45, False)])
@torch.no_grad()
def test_the_class_token_itself_enters_as_it_does_in_the_embedding(
    family: str, input_px: int, antialias: bool
) -> None:
    encoder = wrap(tiny(family), input_px, antialias)
    embedded = encoder.embed(torch.rand(1, 3, input_px, input_px))[:, 0]
    own = encoder.as_class_tokens(class_token(encoder.model))
    torch.testing.assert_close(own, embedded, atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", ["siglip_vision_model", "siglip2_vision_model"])
def test_without_a_class_token_there_is_no_position_to_take(family: str) -> None:
    tokens = torch.rand(2, 32)
    assert torch.equal(wrap(tiny(family), NATIVE_PX, True).as_class_tokens(tokens), tokens)
