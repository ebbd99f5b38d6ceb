"""PatchCore against a slow reading of its equations, and as a detector among others."""

import numpy as np
import pytest
import torch
from holds import check_batches, check_saved
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter
from sklearn.metrics import pairwise_distances

from recap.encoders.load import load_encoder
from recap.errors import InputError, SettingsError
from recap.methods import patchcore as patchcore_memory
from recap.methods.patchcore import (
    Options,
    average_neighbours,
    build,
    coreset_rows,
    density_weight,
    euclidean_k_centre,
    middle_layers,
    nearest_rows,
)
from recap.methods.recap.maps import interpolation_matrix
from recap.methods.registry import resolve_settings
from recap.scoring.fit import fit_sources, fit_support


def slow_tokens(model, pixels):
    """Joined and averaged tokens (25, 64) of one image, by transformers' own forward."""
    encoder = model.encoder
    inputs = (pixels - encoder.mean) / encoder.std
    hidden = encoder.model(inputs, output_hidden_states=True).hidden_states
    joined = []
    for layer in (4, 6):  # of eight blocks
        grid = hidden[layer][0, 1:].double().numpy().reshape(5, 5, -1)
        pooled = [
            grid[max(r - 1, 0) : r + 2, max(c - 1, 0) : c + 2].mean(axis=(0, 1))
            for r in range(5)
            for c in range(5)
        ]
        joined.append(np.stack(pooled))
    return np.concatenate(joined, axis=1)


def slow_output(model, pixels, b):
    tokens, memory = slow_tokens(model, pixels), model.memory.double().numpy()
    far = pairwise_distances(tokens, memory)
    farness = far.min(axis=1)
    worst = farness.argmax()
    match = far[worst].argmin()
    around = np.argsort(pairwise_distances(memory[match][None], memory)[0])[:b]
    shares = np.exp(far[worst]) / np.exp(far[worst][around]).sum()
    score = farness[worst] * (1 - shares[match] if b > 1 else 1)
    matrix = interpolation_matrix(5, 70, 14, "centres").double().numpy()
    smooth = gaussian_filter(matrix @ farness.reshape(5, 5) @ matrix.T, 4, mode="reflect")
    return score, smooth


@pytest.mark.parametrize("b", [1, 3, 9])
@torch.no_grad()
def test_map_and_score_are_those_of_the_equations(b, peer_settings, make_support):
    options = {"neighbours": b, "coreset": 0.5}
    model = fit_support(make_support(normal=3), peer_settings("patchcore", options=options)).model
    pixels = torch.rand(1, 3, 70, 70)
    score, expected = slow_output(model, pixels, b)
    output = model(pixels)
    np.testing.assert_allclose(output.map[0].numpy(), expected, rtol=1e-4)
    assert float(output.score) == pytest.approx(score, rel=1e-4)


@pytest.mark.parametrize("side", [1, 3, 5])
def test_averages_are_over_the_neighbours_that_there_are(side):
    tokens, reach = torch.randn(2, 3, 16, 6), side // 2
    grid = tokens.unflatten(2, (4, 4))
    seen = average_neighbours(tokens, side).unflatten(2, (4, 4))
    for row in range(4):
        for column in range(4):
            rows = slice(max(row - reach, 0), row + reach + 1)
            columns = slice(max(column - reach, 0), column + reach + 1)
            torch.testing.assert_close(
                seen[:, :, row, column], grid[:, :, rows, columns].mean((2, 3))
            )


@pytest.mark.parametrize("chunk", [1, 7, 20, 100])
def test_search_is_exact_whatever_the_chunk(chunk, monkeypatch):
    monkeypatch.setattr(patchcore_memory, "CHUNK_ROWS", chunk)
    tokens, memory = torch.randn(30, 5), torch.randn(20, 5)
    far = pairwise_distances(tokens.numpy(), memory.numpy())
    farness, found = nearest_rows(tokens, memory)
    assert found.tolist() == far.argmin(axis=1).tolist()
    np.testing.assert_allclose(farness.numpy(), far.min(axis=1), rtol=1e-5)


def test_small_distances_between_long_vectors_survive():
    memory = 1000 + torch.randn(40, 8)
    farness, found = nearest_rows(memory, memory)
    assert found.tolist() == list(range(40))
    assert not farness.any()


def slow_k_centre(rows, count):
    chosen = [int(np.linalg.norm(rows - rows.mean(axis=0), axis=1).argmin())]
    while len(chosen) < count:
        far = pairwise_distances(rows, rows[chosen]).min(axis=1)
        far[chosen] = -1
        chosen.append(int(far.argmax()))
    return chosen


@pytest.mark.parametrize("count", [1, 2, 9, 20])
def test_the_coreset_is_greedy_in_euclidean_distance(count):
    rows = torch.randn(20, 4, dtype=torch.float64) * torch.arange(1, 21).unsqueeze(1)
    assert euclidean_k_centre(rows, count).tolist() == slow_k_centre(rows.numpy(), count)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.floats(0.01, 1))
@settings(deadline=None)
def test_rows_that_are_alike_come_last_and_none_twice(labels, share):
    rows = torch.eye(4)[labels]
    chosen = coreset_rows(rows, share, None, 0).tolist()
    assert len(chosen) == len(set(chosen)) == max(1, int(share * len(labels)))
    assert len({labels[i] for i in chosen}) == min(len(chosen), len(set(labels)))


def test_the_projection_depends_on_the_seed_alone_and_keeps_the_cover():
    rows = torch.randn(400, 64, generator=torch.Generator().manual_seed(0))
    chosen = coreset_rows(rows, 0.1, 32, seed=3)
    torch.manual_seed(5)
    assert torch.equal(chosen, coreset_rows(rows, 0.1, 32, seed=3))
    assert not torch.equal(chosen, coreset_rows(rows, 0.1, 32, seed=4))
    exact = nearest_rows(rows, rows[coreset_rows(rows, 0.1, None, 0)])[0].max()
    assert nearest_rows(rows, rows[chosen])[0].max() < 1.5 * exact


@given(st.integers(1, 12), st.integers(0, 1000))
@settings(deadline=None)
def test_the_weight_is_a_share(b, seed):
    generator = torch.Generator().manual_seed(seed)
    memory = 100 * torch.randn(6, 3, generator=generator)  # exp(distance) alone would overflow
    token = 100 * torch.randn(2, 3, generator=generator)
    weight = density_weight(token, *nearest_rows(token, memory), memory, b)
    assert (weight >= 0).all()
    assert (weight <= 1).all()


def test_saved_batched_and_single_scores_agree(peer_settings, make_support, queries, tmp_path):
    detector = fit_support(make_support(), peer_settings("patchcore"))
    check_saved(detector, queries, tmp_path / "bundle")
    check_batches(detector, queries, rel=1e-4, abs=0)


def test_abnormal_images_change_nothing(peer_settings, make_support):
    both = fit_support(make_support(normal=3), peer_settings("patchcore"))
    alone = fit_support(make_support(normal=3, abnormal=0), peer_settings("patchcore"))
    assert torch.equal(both.model.memory, alone.model.memory)
    assert both.map_scale == alone.map_scale
    assert both.model.num_trainable_parameters == 0


def test_a_tenth_of_the_patches_is_remembered_and_all_with_one(peer_settings, make_support):
    few = fit_support(make_support(normal=3), peer_settings("patchcore")).model
    assert few.memory.shape == (7, 64)
    whole = peer_settings("patchcore", options={"coreset": 1.0})
    model = fit_support(make_support(normal=3), whole).model
    assert model.memory.shape == (75, 64)
    assert (few.memory.unsqueeze(1) == model.memory).all(-1).any(-1).all()


def test_the_seed_reaches_the_coreset(peer_settings, make_support):
    options = {"projection": 2, "coreset": 0.2}
    fits = [
        fit_support(make_support(), peer_settings("patchcore", seed=seed, options=options)).model
        for seed in (0, 0, 1)
    ]
    assert torch.equal(fits[0].memory, fits[1].memory)
    assert not torch.equal(fits[0].memory, fits[2].memory)


@pytest.mark.parametrize("normal", [1, 3])
def test_maps_are_drawn_by_images_that_are_not_in_the_memory(normal, peer_settings, make_support):
    whole = peer_settings("patchcore", options={"coreset": 1.0})
    detector = fit_support(make_support(normal=normal), whole)
    low, high = detector.map_scale
    own = detector.score(make_support()[0].image).map
    assert own.max() < low / 10 < high / 10


def test_a_held_out_image_never_sees_its_own_rows(peer_settings, make_support):
    model = fit_support(make_support(normal=3), peer_settings("patchcore")).model
    for number in range(3):
        left = model.without(number).memory
        kept = [row.item() != number for row in model.owner]
        assert torch.equal(left, model.memory[kept])
    model.owner = torch.zeros(len(model.memory), dtype=torch.long)
    assert model.without(0) is None
    assert torch.equal(model.without(1).memory, model.memory)


def test_layers_are_the_two_in_the_middle_unless_others_are_named(peer_settings):
    assert [middle_layers(depth) for depth in (8, 12, 24)] == [(4, 6), (6, 9), (12, 18)]
    encoder = load_encoder(peer_settings("patchcore").encoder)
    model = build(encoder, Options(layers=(1, 3)))
    pixels = torch.rand(2, 3, 70, 70)
    hidden = encoder.model((pixels - encoder.mean) / encoder.std, output_hidden_states=True)
    expected = torch.stack([hidden.hidden_states[layer][:, 1:] for layer in (1, 3)], dim=1)
    expected = average_neighbours(expected, 3).transpose(1, 2).flatten(2)
    torch.testing.assert_close(model.encode(pixels), expected)


def test_unit_tokens_do_not_depend_on_their_length(peer_settings):
    model = build(
        load_encoder(peer_settings("patchcore").encoder), Options(tokens="unit", neighbourhood=1)
    )
    lengths = model.encode(torch.rand(1, 3, 70, 70)).unflatten(-1, (2, 32)).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


@pytest.mark.parametrize("layers", [(), (0, 1), (3, 2), (8, 9), (4, 4)])
def test_layers_that_do_not_exist_are_refused(layers, peer_settings, make_support):
    with pytest.raises(SettingsError, match=r"options\.layers = .*blocks 1 to 8"):
        fit_support(make_support(), peer_settings("patchcore", options={"layers": layers}))


def test_there_is_no_zero_shot_form(phantoms, peer_settings):
    with pytest.raises(InputError, match="PatchCore has no zero-shot form"):
        fit_sources(phantoms, peer_settings("patchcore"))


def test_official_is_the_published_size():
    settings = resolve_settings("official", method="patchcore")
    assert settings.encoder.input_px == 224
    assert settings.options.coreset == 0.1
