"""Every number of both presets, as the pages in docs/peers have it: none other would be noticed."""

import pytest

from recap.config import EncoderSettings
from recap.methods.registry import METHODS, resolve_settings

PEERS = [name for name, row in METHODS.items() if not row.is_ours]
ENCODERS = {
    "visualad": {"name": "clip-vit-l14-336", "input_px": 518},
    "uniadet": {"name": "facebook/dinov2-with-registers-large", "input_px": 518},
    "patchcore": {"input_px": 224},
    "anomalydino": {"name": "dinov2-small", "input_px": 448},
    "april_gan": {"name": "clip-vit-l14-336", "input_px": 518},
    "mediclip": {
        "name": "openai/clip-vit-large-patch14",
        "input_px": 224,
        "layers": (12, 18, 24),
    },
    "mvfa": {"name": "clip-vit-l14-336", "input_px": 240, "normalise": "unit"},
    "madclip": {"name": "clip-vit-l14-336", "input_px": 240, "normalise": "unit"},
    "dra": {"name": "microsoft/resnet-18", "input_px": 448},
}
EQUAL = {
    "visualad": {
        "epochs": None,
        "batch_size": 8,
        "learning_rate": 1e-3,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "dropout": 0.1,
        "top_k": 0.01,
        "smoothing_px": 4.0,
    },
    "uniadet": {
        "epochs": None,
        "batch_size": 8,
        "learning_rate": 1e-3,
        "depths": [0.5, 0.625, 0.75, 0.875, 1.0],
        "temperature": 0.07,
        "map_weight": 0.5,
        "memory_weight": 0.5,
    },
    "patchcore": {
        "layers": None,
        "neighbourhood": 3,
        "tokens": "raw",
        "coreset": 0.1,
        "projection": 128,
        "neighbours": 9,
        "sigma_px": 4.0,
    },
    "anomalydino": {
        "layer": None,
        "rotations": 8,
        "masking": "auto",
        "mask_threshold": 10.0,
        "top_share": 0.01,
        "sigma_px": 4.0,
    },
    "april_gan": {
        "domain": "",
        "epochs": None,
        "batch_size": 8,
        "learning_rate": 1e-3,
        "copies": True,
    },
    "mediclip": {
        "epochs": 50,
        "batch_size": 8,
        "learning_rate": 1e-3,
        "causal": True,
        "variants": 11,
    },
    "mvfa": {
        "domain": "",
        "epochs": 50,
        "batch_size": 1,
        "learning_rate": None,
        "clip_norm": 1.0,
        "memory_weight": 0.5,
        "remember_copies": True,
        "remember_class_token": False,
    },
    "madclip": {
        "domain": "",
        "epochs": 50,
        "batch_size": 16,
        "learning_rate": 1e-3,
        "copies": 11,
        "causal": True,
    },
    "dra": {
        "epochs": 30,
        "steps": 4,
        "batch_size": 16,
        "references": 5,
        "copies": True,
        "rotation_deg": 0.0,
    },
}
OFFICIAL = {
    "uniadet": {"epochs": 15},
    "mediclip": {"epochs": 200, "variants": None, "causal": False},
    "mvfa": {"clip_norm": None, "remember_class_token": True},
    "madclip": {"epochs": 60, "copies": 16, "causal": False},
    "dra": {"steps": 20, "batch_size": 48, "copies": False, "rotation_deg": 180.0},
}


@pytest.mark.parametrize("method", PEERS)
def test_equal_is_the_benchmarks_encoder_and_size(method):
    settings = resolve_settings("equal", method=method)
    assert settings.encoder == EncoderSettings()
    assert settings.encoder.input_px == 240
    assert settings.options.model_dump(mode="json") == EQUAL[method]


@pytest.mark.parametrize("method", PEERS)
def test_official_is_what_was_published(method):
    settings = resolve_settings("official", method=method)
    assert settings.encoder == EncoderSettings(**ENCODERS[method])
    assert settings.options.model_dump(mode="json") == {**EQUAL[method], **OFFICIAL.get(method, {})}
