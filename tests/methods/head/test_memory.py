"""Eqs. 5 and 6: exact search among remembered normal patches, and how they are chosen."""

from collections.abc import Callable

import pytest
import slow_model
import torch
import torch.nn.functional as F
from heads import adapt, remember
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recap.methods.recap import memory as memory_module
from recap.methods.recap.head import ReCAP
from recap.methods.recap.memory import (
    build_memory,
    choose_rows,
    k_centre,
    nearest_distance,
    normalised_distance,
)

MakeModel = Callable[..., ReCAP]


def test_rows_are_the_unit_patches_of_all_images() -> None:
    tokens = 3 * torch.randn(2, 4, 5, dtype=torch.float64)
    rows = build_memory(tokens)
    expected = [slow_model.norm(patch) for image in tokens.tolist() for patch in image]
    torch.testing.assert_close(rows, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("chunk", [1, 3, 7, 8, 9, 100])
@pytest.mark.parametrize("rows", [1, 8, 24])
def test_search_is_exact_whatever_the_chunk(
    monkeypatch: pytest.MonkeyPatch, chunk: int, rows: int
) -> None:
    monkeypatch.setattr(memory_module, "CHUNK_ROWS", chunk)
    tokens = 2 * torch.randn(2, 3, 5, dtype=torch.float64)
    remembered = build_memory(torch.randn(1, rows, 5, dtype=torch.float64))
    bank = remembered.tolist()
    slow = [[slow_model.nearest(patch, bank) for patch in image] for image in tokens.tolist()]
    seen = nearest_distance(tokens, remembered)
    torch.testing.assert_close(seen, torch.tensor(slow, dtype=torch.float64))


def test_a_remembered_patch_is_at_distance_zero_and_its_opposite_at_two() -> None:
    tokens = torch.randn(1, 4, 5, dtype=torch.float64)
    remembered = build_memory(tokens)
    zero, two = torch.zeros(1, 4, dtype=torch.float64), 2 * torch.ones(1, 1, dtype=torch.float64)
    torch.testing.assert_close(nearest_distance(7 * tokens, remembered), zero)
    torch.testing.assert_close(nearest_distance(-tokens[:, :1], remembered[:1]), two)


@given(st.floats(allow_nan=False))
@settings(deadline=None)
def test_normalised_distance(distance: float) -> None:
    seen = normalised_distance(torch.tensor(distance, dtype=torch.float64)).item()
    assert seen == slow_model.half_clipped(distance)


def slow_k_centre(rows: list[list[float]], count: int) -> list[int]:
    """Farthest-first: start nearest to the mean, then take the row farthest from all chosen."""
    mean = [sum(row[i] for row in rows) / len(rows) for i in range(len(rows[0]))]
    chosen = [max(range(len(rows)), key=lambda i: slow_model.dot(rows[i], mean))]
    while len(chosen) < count:
        rest = [i for i in range(len(rows)) if i not in chosen]
        chosen.append(
            max(rest, key=lambda i: min(1 - slow_model.dot(rows[i], rows[j]) for j in chosen))
        )
    return chosen


@pytest.mark.parametrize("count", [1, 2, 7, 20])
@pytest.mark.parametrize("seed", range(3))
def test_k_centre_against_a_greedy_loop(count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = F.normalize(torch.randn(20, 4, generator=generator, dtype=torch.float64), dim=-1)
    assert k_centre(rows, count).tolist() == slow_k_centre(rows.tolist(), count)


@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    share=st.floats(0.05, 1),
)
@settings(deadline=None)
def test_duplicates_are_taken_last_and_never_twice(labels: list[int], share: float) -> None:
    rows = torch.eye(4)[labels]
    count = max(1, int(share * len(rows)))
    chosen = k_centre(rows, count).tolist()
    assert len(set(chosen)) == count
    different = len(set(labels))
    assert len({labels[i] for i in chosen}) == min(count, different)


@pytest.mark.parametrize(("coreset", "rows"), [(None, 12), (1, 1), (5, 5), (12, 12), (50, 12)])
def test_coreset_caps_the_rows(coreset: int | None, rows: int) -> None:
    tokens = torch.randn(3, 4, 5)
    remembered = choose_rows(tokens, coreset)[0]
    assert remembered.shape == (rows, 5)
    everything = build_memory(tokens)
    assert all((row == everything).all(dim=-1).any() for row in remembered)


@pytest.mark.parametrize("coreset", [None, 7])
def test_model_keeps_one_bank_per_layer_and_branch(
    make_model: MakeModel, pixels: Tensor, coreset: int | None
) -> None:
    model = make_model(memory={"coreset": coreset})
    tokens = adapt(model, pixels)
    remember(model, tokens)
    rows = model.memory.rows  # type: ignore[union-attr]
    assert rows is not None
    assert rows.shape == (4, 2, coreset or 75, 32)
    assert not rows.requires_grad
    for layer in range(4):
        for branch in (0, 1):
            expected = choose_rows(tokens[layer][branch], coreset)[0]
            assert torch.equal(rows[layer, branch], expected)


def test_distances_of_a_subset_are_never_smaller() -> None:
    tokens, normal = torch.randn(2, 9, 5), torch.randn(4, 9, 5)
    whole = nearest_distance(tokens, build_memory(normal))
    assert (nearest_distance(tokens, choose_rows(normal, 10)[0]) >= whole - 1e-6).all()
