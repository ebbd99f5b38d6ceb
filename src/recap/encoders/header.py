"""Is this a safetensors file, and does it hold the model that its config.json describes?

Only the header is read: names and shapes, no weights, no torch.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

from recap.errors import WeightsError

Shapes = dict[str, tuple[int, ...]]

# How the tensor that turns pixels into patches is called tells the families apart.
PATCH_TENSORS = {
    "clip_vision_model": "embeddings.patch_embedding.weight",
    "dinov2": "embeddings.patch_embeddings.projection.weight",
    "dinov2_with_registers": "embeddings.patch_embeddings.projection.weight",
    "dinov3_vit": "embeddings.patch_embeddings.weight",
    "resnet": "embedder.embedder.convolution.weight",  # no encoder of ours: DRA trains one
    "siglip2_vision_model": "embeddings.patch_embedding.weight",
    "siglip_vision_model": "embeddings.patch_embedding.weight",
    "vit": "embeddings.patch_embeddings.projection.weight",
}
# An image-and-text model names the pair; its vision tower is what recap uses.
VISION_TOWERS = {
    "clip": "clip_vision_model",
    "siglip": "siglip_vision_model",
    "siglip2": "siglip2_vision_model",
}
CONVERT = (
    "Pickles (.bin, .pt) are never opened: convert them with transformers, whose "
    "save_pretrained(FOLDER) writes model.safetensors; then `recap weights add FOLDER`."
)
_HEADER_LIMIT_BYTES = 100_000_000


def read_config(path: Path) -> dict[str, Any]:
    """The configuration of the vision model in a config.json, with its model_type."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(
            f"Cannot read {path}: {error}. An encoder folder holds config.json and "
            "model.safetensors, as transformers' save_pretrained writes them; `recap weights list` "
            "shows the named encoders."
        ) from error
    kind = str(config.get("model_type", "")) if isinstance(config, dict) else ""
    kind = VISION_TOWERS.get(kind, kind)
    if kind not in PATCH_TENSORS:
        raise WeightsError(
            f"{path}: model type '{kind}' is not supported. "
            f"Supported: {', '.join(sorted(PATCH_TENSORS))}."
        )
    return {**config.get("vision_config", config), "model_type": kind}


def read_shapes(path: Path) -> Shapes:
    """The names and shapes in a safetensors file; an error that says what the file is instead."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if size < 8 or length > min(_HEADER_LIMIT_BYTES, size - 8):
            raise WeightsError(f"{path} {_what_it_is(path, start, size)}")
        header = _parse(path, stream.read(length))
    try:
        shapes = {name: tuple(value["shape"]) for name, value in header.items()}
        end = max((value["data_offsets"][1] for value in header.values()), default=0)
    except (TypeError, KeyError, IndexError) as error:
        raise WeightsError(f"{path} is not a safetensors file: its header is damaged.") from error
    if 8 + length + end != size:
        raise WeightsError(
            f"{path} has {size} bytes, its header announces {8 + length + end}: "
            "the copy is incomplete. Copy it again."
        )
    return shapes


def check_fits(path: Path, config: dict[str, Any]) -> None:
    """Raise unless the file holds a model of this configuration."""
    shapes = _vision_shapes(read_shapes(path))
    kind = config["model_type"]
    tensor = PATCH_TENSORS[kind]
    found = next((shape for name, shape in shapes.items() if name.endswith(tensor)), None)
    if found is None:
        raise WeightsError(
            f"{path} holds no '{tensor}': it is not a '{kind}' model in transformers' layout."
        )
    width, patch = config.get("hidden_size"), config.get("patch_size")
    if width is not None and found[0] != width:
        raise WeightsError(f"{path} has width {found[0]}, config.json says {width}: wrong file.")
    if patch is not None and math.prod(found[1:]) != config.get("num_channels", 3) * patch**2:
        raise WeightsError(f"{path} has patches {found[1:]}, config.json says {patch} px.")
    depth = config.get("num_hidden_layers")
    layers = len({m[1] for name in shapes if (m := re.search(r"\blayers?\.(\d+)\.", name))})
    if depth is not None and layers != depth:
        raise WeightsError(f"{path} has {layers} layers, config.json says {depth}: wrong file.")


def _vision_shapes(shapes: Shapes) -> Shapes:
    tower = {name: shape for name, shape in shapes.items() if "vision_model." in name}
    return tower or shapes


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise WeightsError(f"{path} is not a safetensors file: its header is no JSON.") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{path} is not a safetensors file: its header is no JSON object.")
    header.pop("__metadata__", None)
    return header


def _what_it_is(path: Path, start: bytes, size: int) -> str:
    if size == 0:
        return "is empty. Copy it again."
    if start[:4] == b"PK\x03\x04" or start[:1] == b"\x80" or path.suffix in (".bin", ".pt", ".pth"):
        return f"is a pickle or an archive. {CONVERT}"
    if start == b"version ":
        return "is a Git LFS pointer, not the file itself: run `git lfs pull` where it comes from."
    return "is not a safetensors file, or its copy is incomplete."
