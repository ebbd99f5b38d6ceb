"""Which residual network DRA starts from, and what it sees of the pixels."""

import pytest
import torch
import transformers
from tiny_resnet import PX, TINY, tiny_network

from recap.config import EncoderSettings
from recap.encoders import weights
from recap.encoders.load import load_encoder
from recap.errors import WeightsError
from recap.methods import _dra_backbone as dra_backbone
from recap.methods._dra_backbone import load_backbone
from recap.methods.dra import DRA, Options


@pytest.mark.parametrize("name", ["dinov2-small", "microsoft/resnet-18", "nowhere"])
def test_missing_weights_are_named_with_the_remedy(name, tmp_path, monkeypatch):
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(WeightsError, match=r"ResNet-18.*microsoft/resnet-18.*encoder\.name=FOLDER"):
        load_backbone(EncoderSettings(name=name), 0)


@pytest.fixture
def cached_resnet(tmp_path, monkeypatch):
    """A folder of the cache that holds a small microsoft/resnet-18, and nothing else is there."""
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "cache" / "encoders" / "microsoft--resnet-18"
    config = tiny_network().config
    transformers.ResNetForImageClassification(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "name", ["dinov2-small", "microsoft/resnet-18", "some/transformer", "a folder", "added"]
)
def test_a_transformers_name_means_the_cached_residual_network(name, cached_resnet, tiny_folder):
    folder = cached_resnet
    if name == "added":
        weights.add(tiny_folder, name)
    elif name == "a folder":
        name = str(tiny_folder)
    backbone = load_backbone(EncoderSettings(name=name, input_px=PX), 0)
    assert backbone.name == "microsoft/resnet-18"
    saved = transformers.ResNetModel.from_pretrained(folder).state_dict()
    loaded = backbone.start.state_dict()
    assert all(torch.equal(saved[key], loaded[key]) for key in saved)
    assert len(backbone.checksum) == 64
    assert not list(backbone.parameters())


@pytest.mark.parametrize("name", ["dinov2-smal", "./no/such/folder", "empty", "half"])
def test_a_name_that_means_nothing_is_refused(name, cached_resnet, tmp_path, monkeypatch):
    """The published network in its place would pass for what was asked for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    tiny_network().config.save_pretrained(tmp_path / "half")
    with pytest.raises(WeightsError, match=rf"'{name}'.*ResNet-18.*encoder\.name=FOLDER"):
        load_backbone(EncoderSettings(name=name), 0)


def test_a_residual_network_that_was_added_under_a_name_of_its_own(cached_resnet, tmp_path):
    tiny_network().save_pretrained(tmp_path / "mine")
    added = weights.add(tmp_path / "mine", "mine")
    backbone = load_backbone(EncoderSettings(name="mine", input_px=PX), 0)
    assert (backbone.name, backbone.checksum) == ("mine", added.sha256)


@pytest.mark.parametrize("random_weights", [False, True])
def test_pixels_are_normalised_as_the_settings_say(random_weights, resnet_folder, monkeypatch):
    monkeypatch.setattr(dra_backbone, "RESNET_CONFIG", TINY)
    kind = {"name": str(resnet_folder), "input_px": PX, "random_weights": random_weights}
    own, unit = (
        DRA(load_backbone(EncoderSettings(**kind, normalise=how), 0), Options()).eval()
        for how in ("own", "unit")
    )
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    pixels = torch.rand(1, 3, PX, PX)
    normalised = (pixels - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    with torch.no_grad():
        for one, other in zip(own.features(pixels), unit.features(normalised), strict=True):
            torch.testing.assert_close(one, other)


def test_a_named_encoder_need_not_have_its_configuration_here(cached_resnet):
    """Its weights alone may have been added; they are no residual network's anyway."""
    folder = cached_resnet.parent / "dinov2-small"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    backbone = load_backbone(EncoderSettings(name="dinov2-small", input_px=PX), 0)
    assert backbone.name == "microsoft/resnet-18"


def test_an_added_residual_network_is_found_but_is_no_encoder(tmp_path, monkeypatch):
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    tiny_network().save_pretrained(tmp_path / "mine")
    added = weights.add(tmp_path / "mine", "microsoft/resnet-18")
    backbone = load_backbone(EncoderSettings(input_px=PX), 0)
    assert (backbone.name, backbone.checksum) == ("microsoft/resnet-18", added.sha256)
    with pytest.raises(WeightsError, match="'resnet' is not supported"):
        load_encoder(EncoderSettings(name="microsoft/resnet-18"), 0)


def test_a_file_of_another_network_is_refused(tmp_path, tiny_folder):
    folder = tmp_path / "mixed"
    tiny_network().save_pretrained(folder)
    (folder / "model.safetensors").write_bytes((tiny_folder / "model.safetensors").read_bytes())
    with pytest.raises(WeightsError, match=r"lacks .* tensors"):
        load_backbone(EncoderSettings(name=str(folder)), 0)
