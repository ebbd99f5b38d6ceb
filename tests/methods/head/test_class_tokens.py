"""Zero-shot scores from class tokens: against loops, and what they must not depend on."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from recap.encoders.vit import Encoder
from recap.methods.features import Features
from recap.methods.recap.head import ReCAP
from recap.methods.recap.sources import FLOOR, ClassTokens, project, solve_domains
from recap.methods.recap.view import View

MakeModel = Callable[..., ReCAP]


def slow_solution(x: list[list[float]], ill: list[bool], domain: list[int]) -> list[float]:
    """Coordinate by coordinate; domains that have one class alone are passed over."""
    differences = []
    both_kinds = {(d, True) for d in domain} | {(d, False) for d in domain}
    missing = both_kinds - set(zip(domain, ill, strict=True))
    used = sorted(set(domain) - {d for d, _ in missing})
    for d in used:
        classes = [
            [row for row, i, e in zip(x, ill, domain, strict=True) if e == d and i == kind]
            for kind in (False, True)
        ]
        means, variances = [], []
        for rows in classes:
            columns = list(zip(*rows, strict=True))
            mean = [sum(c) / len(c) for c in columns]
            means.append(mean)
            variances.append(
                [sum((v - m) ** 2 for v in c) / len(c) for c, m in zip(columns, mean, strict=True)]
            )
        both = [(a + b) / 2 for a, b in zip(*variances, strict=True)]
        floor = FLOOR * sum(both) / len(both)
        differences.append(
            [(b - a) / math.sqrt(v + floor) for a, b, v in zip(*means, both, strict=True)]
        )
    direction = [sum(c) / len(c) for c in zip(*differences, strict=True)]
    gaps, middles = [], []
    for d in used:
        places = [
            [
                sum(a * b for a, b in zip(row, direction, strict=True))
                for row, i, e in zip(x, ill, domain, strict=True)
                if e == d and i == kind
            ]
            for kind in (False, True)
        ]
        normal, abnormal = (sum(p) / len(p) for p in places)
        gaps.append((abnormal - normal) / 2)
        middles.append((abnormal + normal) / 2)
    gap, middle = sum(gaps) / len(gaps), sum(middles) / len(middles)
    return [v / gap for v in direction] + [-middle / gap]


def evidence_of(vectors: Tensor, solved: Tensor) -> Tensor:
    """What the source says of images with these class tokens."""
    source = ClassTokens()
    source.direction = solved
    seen = SimpleNamespace(features=SimpleNamespace(class_tokens=vectors))
    return source(cast(View, seen)).score[0]


def sources(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(17, 6, generator=generator, dtype=torch.float64)
    domain = torch.tensor([0] * 5 + [1] * 9 + [2] * 3)
    abnormal = torch.tensor(
        [False, True, True, False, False] + [True] * 4 + [False] * 5 + [True] * 3
    )
    return vectors, abnormal, domain


def test_the_solution_against_loops() -> None:
    vectors, abnormal, domain = sources()
    seen = solve_domains(vectors, abnormal, domain)
    expected = slow_solution(vectors.tolist(), abnormal.tolist(), domain.tolist())
    np.testing.assert_allclose(seen.numpy(), expected, rtol=1e-9)


def test_classes_of_the_sources_lie_at_one_and_minus_one() -> None:
    vectors, abnormal, domain = sources()
    solved = solve_domains(vectors, abnormal, domain)
    places = vectors @ solved[:-1] + solved[-1]
    means = [
        [places[(domain == d) & (abnormal == kind)].mean() for d in (0, 1)]
        for kind in (False, True)
    ]
    assert sum(means[0]) / 2 == pytest.approx(-1)
    assert sum(means[1]) / 2 == pytest.approx(1)
    evidence = evidence_of(vectors, solved)
    assert ((evidence > 0) & (evidence < 1)).all()
    assert ((evidence > 0.5) == (places > 0)).all()


@pytest.mark.parametrize("gaps_away", [-100.0, 0.0, 20.0, 100.0])
def test_images_of_a_far_domain_are_told_apart(gaps_away: float) -> None:
    places = gaps_away + torch.linspace(-1, 1, 9)
    evidence = evidence_of(places[:, None], torch.tensor([1.0, 0.0]))
    assert (evidence.diff() > 0).all()
    assert ((evidence > 0) & (evidence < 1)).all()


def test_a_domain_with_more_images_weighs_no_more() -> None:
    vectors, abnormal, domain = sources()
    twice = torch.cat([vectors, vectors[domain == 1].repeat(7, 1)])
    more = solve_domains(
        twice,
        torch.cat([abnormal, abnormal[domain == 1].repeat(7)]),
        torch.cat([domain, domain[domain == 1].repeat(7)]),
    )
    torch.testing.assert_close(more, solve_domains(vectors, abnormal, domain))


def test_domains_of_one_class_each_are_taken_as_one() -> None:
    vectors, abnormal, _ = sources()
    apart = solve_domains(vectors, abnormal, abnormal.long())
    together = solve_domains(vectors, abnormal, torch.zeros(17))
    torch.testing.assert_close(apart, together)


def test_one_image_of_each_class_is_enough() -> None:
    vectors = torch.randn(2, 5)
    solved = solve_domains(vectors, torch.tensor([False, True]), torch.zeros(2))
    assert torch.isfinite(solved).all()
    torch.testing.assert_close(vectors @ solved[:-1] + solved[-1], torch.tensor([-1.0, 1.0]))


@torch.no_grad()
def test_vectors_are_unit_tokens_side_by_side(tiny_encoder: Encoder, pixels: Tensor) -> None:
    hidden = tiny_encoder.hidden(pixels, tiny_encoder.layers)
    tokens = tiny_encoder.class_tokens(hidden)
    seen = Features(tiny_encoder, hidden).class_tokens
    assert seen.shape == (3, 4 * 32)
    torch.testing.assert_close(seen[1, 32:64], tokens[1, 1] / tokens[1, 1].norm())


@torch.no_grad()
def test_class_tokens_of_the_last_layer_are_the_encoders_own(
    tiny_encoder: Encoder, pixels: Tensor
) -> None:
    hidden = tiny_encoder.hidden(pixels, (tiny_encoder.depth,))
    seen = tiny_encoder.class_tokens(hidden)[:, 0]
    theirs = tiny_encoder.model(
        (pixels - tiny_encoder.mean) / tiny_encoder.std, interpolate_pos_encoding=True
    )
    torch.testing.assert_close(seen, theirs.last_hidden_state[:, 0], atol=1e-4, rtol=0)


@torch.no_grad()
def test_class_tokens_give_the_whole_score(make_model: MakeModel, pixels: Tensor) -> None:
    model = make_model("recap", "domain_masks")
    direction = torch.randn(4 * 32 + 1)
    model.find_source("appearance").direction = direction  # type: ignore[union-attr]
    output = model(pixels)
    vectors = model.features(model.encode(pixels)).class_tokens
    place = 2 * project(vectors, direction)
    expected = 0.5 + 0.5 * place / (1 + place.abs())
    torch.testing.assert_close(output.score, expected)
    assert torch.equal(output.scores["appearance"], output.score)
    assert not torch.equal(output.scores["prototype"], output.score)
