"""A tiny CLIP with both towers, tiny pictures, and what every method must hold to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quick_encoder import encoder_read_once  # noqa: F401
from recap.config import Settings
from recap.data import write_phantoms
from recap.data.benchmark import Domain
from recap.data.support import SupportImage, gather_support

CLIP_PX, CLIP_WIDTH, CLIP_PROJECTION = 70, 32, 24


def tiny_clip() -> Any:
    """Both towers: vision width 32, 8 blocks, 14 px patches; text width 16; projection 24."""
    import torch
    import transformers

    characters = vocabulary()
    config = transformers.CLIPConfig(
        vision_config={
            "hidden_size": CLIP_WIDTH,
            "intermediate_size": 64,
            "num_hidden_layers": 8,
            "num_attention_heads": 2,
            "image_size": CLIP_PX,
            "patch_size": 14,
            "projection_dim": CLIP_PROJECTION,
        },
        text_config={
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "vocab_size": len(characters),
            "bos_token_id": characters["<|startoftext|>"],
            "eos_token_id": characters["<|endoftext|>"],
            "projection_dim": CLIP_PROJECTION,
        },
        projection_dim=CLIP_PROJECTION,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.CLIPModel(config).eval()
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:  # ones and zeros would hide mistakes
                torch.nn.init.normal_(parameter, mean=float("weight" in name), std=0.1)
            # Sentences of a tower that starts small are all but the same.
            elif "text_model.embeddings" in name:
                torch.nn.init.normal_(parameter)
    return model


def vocabulary() -> dict[str, int]:
    """Every printable character, within a word and at its end; the end of text comes last."""
    characters = [chr(code) for code in range(33, 127)]
    tokens = [*characters, *(f"{c}</w>" for c in characters), "<|startoftext|>", "<|endoftext|>"]
    return {token: index for index, token in enumerate(tokens)}


@pytest.fixture(scope="session")
def tiny_clip_folder(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """The tiny CLIP with its tokeniser, for `encoder.name` (with `encoder.input_px=70`)."""
    folder = tmp_path_factory.mktemp("tiny-clip") / "encoder"
    tiny_clip().save_pretrained(folder, safe_serialization=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary()), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def resnet_folder(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A tiny residual network for DRA's `encoder.name` (with `encoder.input_px=96`)."""
    from tiny_resnet import tiny_network

    folder = tmp_path_factory.mktemp("resnet") / "tiny"
    tiny_network().save_pretrained(folder, safe_serialization=True)
    return folder


@pytest.fixture(scope="session")
def peer_settings(tiny_clip_folder: Path) -> Callable[..., Settings]:
    """peer_settings(method, preset, encoder={…}, options={…}): on the tiny CLIP at 70 px."""

    def make(method: str, preset: str = "equal", **sections: Any) -> Settings:
        from recap.methods.registry import resolve_settings

        given = {"name": str(tiny_clip_folder), "input_px": CLIP_PX, "layers": None}
        encoder = {**given, **sections.pop("encoder", {})}
        return resolve_settings(method=method, preset=preset, encoder=encoder, **sections)

    return make


def picture(seed: int) -> np.ndarray:
    """A grey image of soft stripes, 70 × 70."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:CLIP_PX, :CLIP_PX] / CLIP_PX
    waves = np.sin(6 * rows + seed) * np.cos(5 * columns) + 0.2 * rng.standard_normal(rows.shape)
    return np.clip(0.4 + 0.15 * waves, 0, 1).astype(np.float32)


def lesion(index: int) -> np.ndarray:
    """The mask of a square."""
    mask, corner = np.zeros((CLIP_PX, CLIP_PX), bool), 10 + 25 * (index % 2)
    mask[corner : corner + 20, corner : corner + 20] = True
    return mask


@pytest.fixture(scope="session")
def make_support() -> Callable[..., list[SupportImage]]:
    """make_support(normal=2, abnormal=2, masks=True): stripes, and stripes with a bright square."""

    def make(normal: int = 2, abnormal: int = 2, masks: bool = True) -> list[SupportImage]:
        marks = [lesion(i) for i in range(abnormal)]
        diseased = [np.maximum(picture(100 + i), mark) for i, mark in enumerate(marks)]
        healthy = [picture(i) for i in range(normal)]
        return gather_support(healthy, diseased, marks if masks else None)

    return make


@pytest.fixture(scope="session")
def queries() -> list[np.ndarray]:
    """Three images that were not fitted on, one with a square."""
    return [picture(50), np.maximum(picture(51), lesion(1)).astype(np.float32), picture(52)]


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> list[Domain]:
    """Three domains of 2 + 2 images in pool and test; Chest has no masks."""
    root = tmp_path_factory.mktemp("phantoms")
    return write_phantoms(root, pool=2, test=2, size_px=70, domains=["Brain", "Liver", "Chest"])
