import json

import pytest

from recap.config import EncoderSettings
from recap.encoders._cache import assumed_normalisation, normalisation_of
from recap.encoders.load import load_encoder
from recap.encoders.registry import FAMILIES, IMAGENET
from recap.encoders.weights import add
from recap.errors import WeightsError

CONFIG = {"model_type": "dinov2"}


def state(folder, content):
    folder.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "preprocessor_config.json").write_text(text)


def test_every_family_has_a_usual_normalisation():
    assert all(len(row.normalisation) == 2 for row in FAMILIES.values())


def test_what_the_folder_says_stands(tmp_path):
    state(tmp_path, {"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3]})
    assert normalisation_of(tmp_path, CONFIG) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))


@pytest.mark.parametrize("content", [None, {}, {"image_mean": [0.1] * 3}])
def test_what_is_assumed_is_said(content, tmp_path, write_folder):
    folder = write_folder(tmp_path / "encoder")
    if content is not None:
        state(folder, content)
    assert normalisation_of(folder, CONFIG) == IMAGENET
    said = assumed_normalisation("mine", folder)
    assert said.startswith("mine: no preprocessor_config.json says how pixels are normalised")
    assert "dinov2: mean [0.485, 0.456, 0.406], std [0.229, 0.224, 0.225]" in said


def test_nothing_is_said_where_nothing_is_assumed(tmp_path, write_folder, named):
    folder = write_folder(tmp_path / "encoder")
    entry = named()
    assert assumed_normalisation(entry.name, folder) is None  # the registry says it
    state(folder, {"image_mean": [0.1] * 3, "image_std": [0.5] * 3})
    assert assumed_normalisation("mine", folder) is None


DAMAGED = [
    "{",
    "[]",
    {"image_mean": [0.5], "image_std": [0.5]},
    {"image_mean": 0.5, "image_std": 0.5},
    {"image_mean": ["a", "b", "c"], "image_std": [1, 1, 1]},
    {"image_mean": [0, 0, 0], "image_std": [1, 0, 1]},
    '{"image_mean": [NaN, 0, 0], "image_std": [1, 1, 1]}',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_file_is_named(content, tmp_path):
    state(tmp_path, content)
    with pytest.raises(WeightsError, match=r"preprocessor_config\.json is damaged.*Copy it again"):
        normalisation_of(tmp_path, CONFIG)


def test_a_damaged_file_does_not_enter_the_cache(tmp_path, write_folder, machine):
    folder = write_folder(tmp_path / "mine")
    state(folder, DAMAGED[2])
    with pytest.raises(WeightsError, match=r"preprocessor_config\.json is damaged"):
        add(folder)
    assert not (machine / "encoders" / "mine").exists()


def test_a_damaged_file_stops_loading(tmp_path, machine):
    config = {"model_type": "vit", "hidden_size": 8, "num_hidden_layers": 4, "image_size": 32}
    shape = {"num_attention_heads": 1, "intermediate_size": 8, "patch_size": 16}
    (tmp_path / "config.json").write_text(json.dumps(config | shape))
    state(tmp_path, DAMAGED[2])
    with pytest.raises(WeightsError, match=r"preprocessor_config\.json is damaged"):
        load_encoder(EncoderSettings(name=str(tmp_path), input_px=32, random_weights=True))
