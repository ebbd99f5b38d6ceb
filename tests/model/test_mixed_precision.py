"""Fails today. Training on a CUDA device runs under autocast(bfloat16); this is the CPU's twin."""

import pytest
import torch
import torch.nn.functional as F

from recap.model.logits import class_logits
from recap.model.prototypes import PrototypePair


def test_cosine_backward_under_autocast():
    layer = torch.nn.Linear(8, 5, bias=False)
    anchors = F.normalize(torch.randn(2, 2, 5), dim=-1).requires_grad_()
    hidden = torch.randn(2, 4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        logits = class_logits(layer(hidden), anchors, 100.0)
    exact = class_logits(layer(hidden), anchors, 100.0)
    logits.float().sum().backward()  # RuntimeError: Bad in-place call … BFloat16 … float
    assert torch.isfinite(layer.weight.grad).all()
    # A cosine rounded to bfloat16 (2⁻⁸) times 100 is off by up to 0.4; only the linear may round.
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, exact, atol=1.0, rtol=0)


@pytest.mark.parametrize("conditioning", ["gated", "bounded", "unbounded", "static"])
def test_drift_bound_stays_on_the_device(conditioning):
    pair = PrototypePair(5, conditioning, 0.05).to("meta")
    assert pair.drift_bound().device.type == "meta"
