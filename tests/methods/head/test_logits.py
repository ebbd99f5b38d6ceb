"""Eqs. 3 and 4: cosine logits, their margin, and the gradient written by hand."""

from collections.abc import Callable

import pytest
import slow_model
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recap.methods.recap.head import ReCAP
from recap.methods.recap.prototypes import _Cosine, class_logits, margin, probability

MakeModel = Callable[..., ReCAP]


def example(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(2, 4, 5, generator=generator, dtype=dtype) * 3
    anchors = F.normalize(torch.randn(2, 2, 5, generator=generator, dtype=dtype), dim=-1)
    return tokens.requires_grad_(), anchors.requires_grad_()


def composed(tokens: Tensor, anchors: Tensor) -> Tensor:
    return F.normalize(tokens, dim=-1) @ anchors.transpose(1, 2)


@torch.no_grad()
def test_logits_against_loops() -> None:
    tokens, anchors = example()
    fast = class_logits(tokens, anchors, 100.0)
    slow = [
        [slow_model.logits(token, *anchors[image].tolist(), 100.0) for token in patches]
        for image, patches in enumerate(tokens.tolist())
    ]
    torch.testing.assert_close(fast, torch.tensor(slow, dtype=torch.float64))


@given(normal=st.floats(-100, 100), abnormal=st.floats(-100, 100))
@settings(deadline=None)
def test_sigmoid_of_the_margin_is_the_abnormal_entry_of_the_softmax(
    normal: float, abnormal: float
) -> None:
    pair = torch.tensor([normal, abnormal], dtype=torch.float64)
    assert margin(pair).item() == abnormal - normal
    seen = probability(margin(pair)).item()
    assert seen == pytest.approx(slow_model.abnormal_share(normal, abnormal), abs=1e-12)
    assert seen == pytest.approx(pair.softmax(dim=0)[1].item(), abs=1e-12)


def test_gradient_against_finite_differences() -> None:
    assert torch.autograd.gradcheck(_Cosine.apply, example())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_equals_that_of_the_composed_operations(dtype: torch.dtype) -> None:
    tokens, anchors = example(dtype=dtype)
    weights = torch.randn(2, 4, 2, dtype=dtype)
    results = [function(tokens, anchors) for function in (_Cosine.apply, composed)]
    torch.testing.assert_close(*results)
    gradients = [torch.autograd.grad((r * weights).sum(), (tokens, anchors)) for r in results]
    torch.testing.assert_close(*gradients)


def test_gradient_with_anchors_that_all_images_share() -> None:
    tokens, _ = example()
    base = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    gradients = []
    for function in (_Cosine.apply, composed):
        anchors = F.normalize(base, dim=-1).expand(2, -1, -1)
        gradients.append(torch.autograd.grad(function(tokens, anchors)[..., 1].sum(), base)[0])
    torch.testing.assert_close(*gradients)


def test_zero_tokens_give_zero_logits_and_finite_gradients() -> None:
    _, anchors = example(dtype=torch.float32)
    tokens = torch.zeros(2, 4, 5, requires_grad=True)
    logits = class_logits(tokens, anchors, 100.0)
    assert torch.equal(logits, torch.zeros(2, 4, 2))
    for gradient in torch.autograd.grad(logits.sum(), (tokens, anchors)):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("conditioning", ["gated", "unbounded", "static"])
def test_zero_tokens_through_the_whole_head(make_model: MakeModel, conditioning: str) -> None:
    """A dead context and dead patches: probability one half, nothing that is not a number."""
    model = make_model(regime="domain_both", model={"conditioning": conditioning})
    hidden = torch.zeros(1, 4, 26, 32)
    output = model.judge(model.features(hidden, torch.zeros(1, 3, 70, 70)))
    torch.testing.assert_close(output.score, torch.tensor([0.5]))
    torch.testing.assert_close(output.map, torch.full((1, 70, 70), 0.5))
    (output.score.sum() + output.map.sum()).backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert torch.isfinite(parameter.grad).all(), name
