import copy
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.config import merged, parse_override, read_toml, setting_names
from recap.errors import SettingsError
from recap.methods.recap.settings import PRESETS, RecapSettings
from recap.methods.registry import resolve_settings, settings_from_dict


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "settings.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_recap_is_the_default_and_fast_changes_nothing():
    assert resolve_settings() == resolve_settings("recap") != RecapSettings()
    assert resolve_settings("fast") == RecapSettings()
    assert resolve_settings().model.branches == "taught"


def test_paper_preset_is_the_published_recipe():
    paper = resolve_settings("paper")
    assert paper.preset == "paper"
    assert paper.model.write_back
    assert paper.model.upsample == "corners"
    assert (paper.training.batch_size, paper.training.clip_norm) == (1, 1.0)
    assert (paper.model.conditioning, paper.model.branches) == ("gated", "both")
    assert (paper.training.separation_margin, paper.training.separation_weight) == (0, 0.1)
    assert (paper.model.eta, paper.model.logit_scale, paper.model.top_k) == (0.05, 100.0, 0.1)
    assert (paper.training.epochs, paper.encoder.input_px, paper.memory.weight) == (50, 240, 0.5)


def test_each_layer_beats_the_one_before_it(toml):
    file = toml('preset = "paper"\n[training]\nbatch_size = 3\nepochs = 7\n')
    assert resolve_settings(config=file).training.batch_size == 3
    assert resolve_settings(config=file).model.write_back  # from the preset the file asks for
    overrides = ["training.epochs=9", "model.write_back=false"]
    settings = resolve_settings(config=file, overrides=overrides)
    assert settings.preset == "paper"
    assert settings.training.batch_size == 3
    assert settings.training.epochs == 9
    assert not settings.model.write_back
    assert settings.model.upsample == "corners"
    assert resolve_settings(config=file, training={"epochs": 2}).training.epochs == 2


def test_a_preset_named_in_the_call_beats_the_one_in_a_file(toml):
    file = toml('preset = "paper"\n[training]\nepochs = 7\n')
    settings = resolve_settings("fast", file, ["preset=paper"])
    assert settings.preset == "fast"
    assert not settings.model.write_back
    assert settings.training.epochs == 7
    assert resolve_settings(config=file, overrides=["preset=fast"]).preset == "fast"


def test_a_later_override_beats_an_earlier_one():
    assert resolve_settings(overrides=["seed=1", "seed=2"]).seed == 2


def test_one_key_of_a_section_leaves_its_neighbours_alone():
    settings = resolve_settings("paper", overrides=["training.epochs=4"])
    assert (settings.training.epochs, settings.training.batch_size) == (4, 1)


def test_presets_are_never_changed():
    before = copy.deepcopy(PRESETS)
    resolve_settings("paper", overrides=["model.write_back=false", "training.batch_size=9"])
    resolve_settings("paper", model={"upsample": "centres"})
    assert before == PRESETS
    assert resolve_settings("paper").model.write_back


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-0.5", -0.5),
        ("1e-4", 1e-4),
        ("true", True),
        ("false", False),
        ("null", None),
        ("[3, 6, 9]", [3, 6, 9]),
        ('"quoted"', "quoted"),
        ("plain text", "plain text"),
        (" padded ", "padded"),
        ("path=with=signs", "path=with=signs"),
        ("", ""),
    ],
)
def test_override_values(text, value):
    assert parse_override(f"a.b={text}") == {"a": {"b": value}}


@settings(max_examples=40)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_override_reads_any_json(value):
    assert parse_override(f"key={json.dumps(value)}") == {"key": value}


@settings(max_examples=40)
@given(st.text("abcxyz/._-=", min_size=1))
def test_override_takes_other_text_as_it_is(text):
    assert parse_override(f"key={text}") == {"key": text}


@pytest.mark.parametrize("text", ["epochs", "=3", " =3", ""])
def test_override_without_key_or_value_is_refused(text):
    with pytest.raises(SettingsError, match=r"section\.key=value"):
        parse_override(text)


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("training.epoch=3", "training.epochs"),
        ("epochs=3", "training.epochs"),
        ("model.epochs=3", "training.epochs"),
        ("encoder.inputpx=3", "encoder.input_px"),
        ("sede=3", "seed"),
    ],
)
def test_unknown_key_suggests_the_nearest_one(override, meant):
    key = override.split("=")[0]
    with pytest.raises(SettingsError, match=f"Unknown setting '{key}'.*'{meant}'"):
        resolve_settings(overrides=[override])


def test_unknown_key_without_a_neighbour_points_to_the_list():
    with pytest.raises(SettingsError, match="recap info --settings") as caught:
        resolve_settings(overrides=["zzzz=1"])
    assert "Did you mean" not in str(caught.value)


def test_unknown_key_in_a_file(toml):
    with pytest.raises(SettingsError, match=r"memory\.wieght.*memory\.weight"):
        resolve_settings(config=toml("[memory]\nwieght = 0.3\n"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.epochs", "0"),
        ("training.batch_size", "-1"),
        ("training.learning_rate", "0"),
        ("training.separation_margin", "1.5"),
        ("memory.weight", "1.01"),
        ("memory.coreset", "0"),
        ("encoder.input_px", "16"),
        ("model.bottleneck", "0"),
        ("model.top_k", "0"),
        ("model.conditioning", "magic"),
        ("model.eta", "wide"),
        ("model", "5"),
        ("seed", "-1"),
        ("encoder.layers", "[1.5]"),
    ],
)
def test_impossible_value_names_key_and_value(key, value):
    with pytest.raises(SettingsError) as caught:
        resolve_settings(overrides=[f"{key}={value}"])
    assert key in str(caught.value)
    assert value.strip("[]") in str(caught.value)


@pytest.mark.parametrize("key", ["model.eta", "training.cache_gb", "training.learning_rate"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_values_that_json_cannot_hold_are_refused(key, value):
    section, leaf = key.split(".")
    with pytest.raises(SettingsError, match=key):
        resolve_settings(**{section: {leaf: value}})


@pytest.mark.parametrize("preset", ["turbo", 3, ["fast"]])
def test_unknown_preset_names_the_choices(preset):
    with pytest.raises(SettingsError, match="Choose from: "):
        resolve_settings(preset=preset)


def test_broken_toml_names_file_and_line(toml):
    file = toml("[training\nepochs = 3\n")
    with pytest.raises(SettingsError, match=rf"{file.name} is not valid TOML.*line 1"):
        read_toml(file)


def test_toml_that_is_not_text(tmp_path):
    file = tmp_path / "picture.toml"
    file.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(SettingsError, match="not valid TOML"):
        read_toml(file)


def test_toml_with_a_byte_order_mark(toml):
    assert resolve_settings(config=toml("\ufeffseed = 7\n")).seed == 7


@pytest.mark.parametrize("value", ["2026-01-31", "2026-01-31T10:00:00", "10:00:00"])
@pytest.mark.parametrize("name", ["training.epochs", "encoder.name", "reading.axis", "seed"])
def test_dates_in_toml_are_refused_by_name(toml, name, value):
    with pytest.raises(SettingsError, match=rf"^Setting {name} = datetime\."):
        resolve_settings("fast", toml(f"{name} = {value}"))


@pytest.mark.parametrize("overrides", [[], ["encoder.input_px=70"]])
def test_an_encoder_may_be_a_path(overrides):
    settings = resolve_settings(overrides=overrides, encoder={"name": Path("some/folder")})
    assert settings == resolve_settings(overrides=[*overrides, "encoder.name=some/folder"])


def test_nested_values_are_copied_as_json_has_them():
    layers = ({"options": {"a": (1, {"b": 2.5}), "c": None}}, {"options": {"d": True}})
    before = copy.deepcopy(layers)
    tree = merged(layers)
    assert tree == {"options": {"a": [1, {"b": 2.5}], "c": None, "d": True}}
    tree["options"]["a"][1]["b"] = 0
    assert layers == before


def test_missing_toml(tmp_path):
    with pytest.raises(SettingsError, match=r"Cannot read.*nothing\.toml.*No such file"):
        resolve_settings(config=tmp_path / "nothing.toml")


def test_settings_survive_json():
    settings = resolve_settings("paper", encoder={"layers": (2, 4)}, memory={"coreset": 7})
    assert settings_from_dict(settings.model_dump(mode="json")) == settings


def test_settings_cannot_be_changed_in_place():
    with pytest.raises(ValueError, match="frozen"):
        RecapSettings().training.epochs = 3


def test_every_setting_has_a_dotted_name():
    names = setting_names(RecapSettings)
    assert {"seed", "preset", "encoder.name", "training.epochs"} <= set(names)
    assert len(names) == len(set(names))
    tree = RecapSettings().model_dump()
    flat = {f"{s}.{k}" for s, v in tree.items() if isinstance(v, dict) for k in v}
    assert flat | {k for k, v in tree.items() if not isinstance(v, dict)} == set(names)
