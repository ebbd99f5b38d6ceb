"""Method step 2: what adapters compute, and what they write into the encoder."""

from collections.abc import Callable

import numpy as np
import pytest
import slow_model
import torch
from heads import DET, SEG, adapt
from torch import Tensor

from recap.methods.recap.adapters import Adapter, write_back
from recap.methods.recap.head import ReCAP

MakeModel = Callable[..., ReCAP]


def adapter_of(model: ReCAP, layer: int, branch: int) -> Adapter:
    adapter = (model.maps, model.scores)[branch].adapters[layer]
    assert isinstance(adapter, Adapter)
    return adapter


def through(weight: Tensor, tokens: Tensor) -> Tensor:
    """A slow fully connected layer on every token of every image: (B, T, in) -> (B, T, out)."""
    matrix = weight.detach().tolist()
    rows = [[slow_model.fully_connected(matrix, t) for t in image] for image in tokens.tolist()]
    return torch.tensor(rows, dtype=torch.float64)


def test_tokens_and_residual_are_two_biasless_layers_with_leaky_relu() -> None:
    torch.manual_seed(0)
    adapter = Adapter(6, 4, write_back=True).double()
    hidden = torch.randn(2, 3, 6, dtype=torch.float64)
    tokens = adapter(hidden)
    assert (tokens < 0).any()  # the leak is part of the test
    torch.testing.assert_close(tokens, through(adapter.down.weight, hidden))
    residual = adapter.residual(tokens)
    assert residual.shape == hidden.shape
    assert adapter.up is not None
    torch.testing.assert_close(residual, through(adapter.up.weight, tokens))
    assert [name for name, _ in adapter.named_parameters()] == ["down.weight", "up.weight"]


def test_side_adapters_have_no_way_up() -> None:
    adapter = Adapter(6, 4, write_back=False)
    assert [name for name, _ in adapter.named_parameters()] == ["down.weight"]


def test_write_back_mixes_eight_to_one_to_one() -> None:
    hidden, seg, det = (torch.randn(2, 3, 4, dtype=torch.float64) for _ in range(3))
    expected = torch.empty_like(hidden)
    for index in np.ndindex(2, 3, 4):
        expected[index] = 0.8 * hidden[index] + 0.1 * seg[index] + 0.1 * det[index]
    torch.testing.assert_close(write_back(hidden, seg, det), expected)


def slow_write_back(model: ReCAP, pixels: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Block after block; after a tapped one both adapters read, then write into all tokens."""
    encoder, collected = model.encoder, []
    hidden = encoder.embed(pixels)
    for block in range(1, encoder.depth + 1):
        hidden = encoder.run(hidden, block - 1, block)
        if block not in encoder.layers:
            continue
        tokens, residuals = [], []
        for branch in (SEG, DET):
            adapter = adapter_of(model, encoder.layers.index(block), branch)
            tokens.append(through(adapter.down.weight, hidden))
            residuals.append(through(adapter.up.weight, tokens[-1]))
        collected.append((tokens[0][:, 1:], tokens[1][:, 1:]))
        mixed = hidden.clone()
        for image, token in np.ndindex(*hidden.shape[:2]):  # token 0 is the class token
            seg, det = residuals[0][image, token], residuals[1][image, token]
            mixed[image, token] = 0.8 * hidden[image, token] + 0.1 * seg + 0.1 * det
        hidden = mixed
    return collected


@torch.no_grad()
def test_whole_write_back_forward(make_model: MakeModel, pixels: Tensor) -> None:
    model = make_model("paper", double=True)
    pixels = pixels[:2].double()
    fast, slow = adapt(model, pixels), slow_write_back(model, pixels)
    assert len(fast) == len(slow) == 4
    for fast_layer, slow_layer in zip(fast, slow, strict=True):
        for branch in (SEG, DET):
            assert fast_layer[branch].shape == (2, 25, 32)
            torch.testing.assert_close(fast_layer[branch], slow_layer[branch])


@torch.no_grad()
def test_side_adapters_read_the_untouched_encoder(make_model: MakeModel, pixels: Tensor) -> None:
    model = make_model(double=True)
    pixels = pixels[:1].double()
    states = model.encoder.model(pixels, output_hidden_states=True).hidden_states
    tokens = adapt(model, pixels)
    for layer, block in enumerate((2, 4, 6, 8)):
        for branch in (SEG, DET):
            expected = through(adapter_of(model, layer, branch).down.weight, states[block][:, 1:])
            torch.testing.assert_close(tokens[layer][branch], expected)


@pytest.mark.parametrize("layer", range(4))
@torch.no_grad()
def test_only_the_last_way_up_has_no_effect(
    make_model: MakeModel, pixels: Tensor, layer: int
) -> None:
    model = make_model("paper", "domain_both")
    before = model(pixels)
    for branch in (SEG, DET):
        adapter_of(model, layer, branch).up.weight.normal_()
    after = model(pixels)
    unchanged = torch.equal(before.score, after.score) and torch.equal(before.map, after.map)
    assert unchanged == (layer == 3)


def test_each_branch_and_layer_has_its_own_adapter(make_model: MakeModel) -> None:
    model = make_model("paper")
    chosen = {id(adapter_of(model, layer, branch)) for layer in range(4) for branch in (SEG, DET)}
    assert len(chosen) == 8
