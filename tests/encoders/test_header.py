import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.encoders._cache import check_fits, read_config, read_shapes
from recap.errors import WeightsError

CONFIG = {"model_type": "dinov2", "hidden_size": 8, "num_hidden_layers": 2, "patch_size": 4}


def test_shapes_equal_those_of_the_library(tmp_path, write_weights):
    from safetensors.numpy import load_file

    path = write_weights(tmp_path / "model.safetensors")
    assert read_shapes(path) == {name: a.shape for name, a in load_file(path).items()}
    check_fits(path, CONFIG)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.safetensors", b"", "is empty"),
        ("b.safetensors", b"abc", "not a safetensors file"),
        ("c.bin", b"\x80\x02}q\x00" + b"x" * 50, "pickle or an archive"),
        ("d.pt", b"PK\x03\x04" + b"x" * 50, "pickle or an archive"),
        ("e.safetensors", b"version https://lfs.example/v1\noid sha256:00\n", "Git LFS"),
        ("f.safetensors", (4).to_bytes(8, "little") + b"nope", "no JSON"),
        ("g.safetensors", (2).to_bytes(8, "little") + b"[]", "no JSON object"),
        ("h.safetensors", (9).to_bytes(8, "little") + b'{"a": {}}', "header is damaged"),
    ],
)
def test_other_files_are_named_for_what_they_are(tmp_path, name, data, reason):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=reason) as caught:
        read_shapes(path)
    assert str(path) in str(caught.value)


def test_a_pickle_is_never_opened(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "pytorch_model.bin"
    torch.save({"weight": torch.zeros(3)}, path)
    with pytest.raises(WeightsError, match="pickle or an archive"):
        read_shapes(path)


@given(cut=st.integers(1, 700))
def test_every_truncation_is_noticed(tmp_path_factory, write_weights, cut):
    path = write_weights(tmp_path_factory.mktemp("cut") / "model.safetensors")
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    with pytest.raises(WeightsError):
        read_shapes(path)


@given(st.binary(max_size=200))
def test_noise_raises_nothing_but_our_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("noise") / "model.safetensors"
    path.write_bytes(data)
    try:
        read_shapes(path)
    except WeightsError:
        return


def test_a_prefix_before_the_names_is_fine(tmp_path, write_weights):
    check_fits(write_weights(tmp_path / "m.safetensors", prefix="backbone."), CONFIG)


def test_another_family_is_refused(tmp_path, write_weights):
    path = write_weights(tmp_path / "m.safetensors")
    with pytest.raises(WeightsError, match="not a 'clip_vision_model'"):
        check_fits(path, {**CONFIG, "model_type": "clip_vision_model"})


def test_the_vision_tower_of_a_pair(tmp_path):
    transformers = pytest.importorskip("transformers")
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    vision = {**tower, "num_hidden_layers": 2, "image_size": 8, "patch_size": 4}
    text = {**tower, "num_hidden_layers": 3, "vocab_size": 20}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision)
    transformers.CLIPModel(config).save_pretrained(tmp_path)
    found = read_config(tmp_path / "config.json")
    assert (found["model_type"], found["num_hidden_layers"]) == ("clip_vision_model", 2)
    check_fits(tmp_path / "model.safetensors", found)


@pytest.mark.parametrize("text", ["", "[]", "{", json.dumps({"model_type": "bert"})])
def test_a_config_that_says_nothing_useful(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WeightsError, match=r"config\.json"):
        read_config(tmp_path / "config.json")
