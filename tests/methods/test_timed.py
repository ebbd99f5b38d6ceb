"""Methods made ready for timing score as fitted ones do: finite, and alike in any batch."""

import pytest
import torch

from recap.bench.timed import can_run, timed_model
from recap.encoders.load import load_encoder
from recap.methods.registry import METHODS, resolve_settings


@pytest.fixture(scope="module")
def settings(tiny_clip_folder):
    return resolve_settings(encoder={"name": str(tiny_clip_folder), "input_px": 70})


@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_timed(method, shots, settings):
    if not can_run(method, shots):
        assert method in ("normal_only", "nearest", "patchcore", "anomalydino")
        return
    encoder = load_encoder(settings.encoder, 0)
    model = timed_model(method, encoder, settings, shots)
    pixels = torch.rand(2, 3, 70, 70)
    with torch.inference_mode():
        both, first = model(pixels), model(pixels[:1])
    assert both.map.shape == (2, 70, 70)
    assert bool(both.map.isfinite().all())
    assert bool(both.score.isfinite().all())
    torch.testing.assert_close(both.score[:1], first.score, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(both.map[:1], first.map, rtol=1e-4, atol=1e-5)
