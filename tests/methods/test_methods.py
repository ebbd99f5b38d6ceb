"""Every method by its name: settings that are checked, and what each can do."""

import dataclasses
import errno
import json
import os
import shutil

import pytest

from recap.config import Settings
from recap.encoders.registry import ENCODERS
from recap.errors import InputError, OtherFitError, SettingsError, TrainingError, WeightsError
from recap.methods.recap.settings import RecapSettings
from recap.methods.registry import METHODS, find_method, resolve_settings, settings_from_dict
from recap.scoring.fit import fit_sources, fit_support

PEERS = {name: row for name, row in METHODS.items() if not row.is_ours}


@pytest.mark.parametrize("method", PEERS)
def test_both_presets_of_every_method_resolve(method):
    equal, official = (resolve_settings(preset, method=method) for preset in ("equal", "official"))
    assert isinstance(equal, Settings)
    assert equal.encoder.input_px == 240
    assert (equal.encoder, equal.options) != (official.encoder, official.options)
    assert settings_from_dict(json.loads(equal.model_dump_json())) == equal
    assert PEERS[method].module.STATEMENT.endswith(".")


def test_ours_too():
    assert isinstance(resolve_settings("paper"), RecapSettings)
    assert resolve_settings(method="static").model.conditioning == "static"
    assert resolve_settings(method="recap", overrides=["model.eta=0.2"]).model.eta == 0.2


@pytest.mark.parametrize(
    ("method", "setting", "other"),
    [
        ("static", "model.conditioning", '"gated"'),
        ("normal_only", "training.made_up_lesions", "false"),
        ("nearest", "training.made_up_lesions", "true"),
    ],
)
def test_what_a_method_fixes_cannot_be_set_otherwise(method, setting, other, tmp_path):
    message = rf"{setting} = {other}, but method '{method}' is the one with"
    with pytest.raises(SettingsError, match=message):
        resolve_settings(method=method, overrides=[f"{setting}={other}"])
    section, key = setting.split(".")
    (tmp_path / "s.toml").write_text(f"[{section}]\n{key} = {other}\n")
    with pytest.raises(SettingsError, match=message):
        resolve_settings(method=method, config=tmp_path / "s.toml")
    with pytest.raises(SettingsError, match=message):
        resolve_settings(method=method, **{section: {key: json.loads(other)}})
    own = resolve_settings(method=method)
    same = json.dumps(getattr(getattr(own, section), key))
    assert resolve_settings(method=method, overrides=[f"{setting}={same}"]) == own


def test_a_preset_in_a_file_or_among_the_settings_is_a_preset(tmp_path):
    official = resolve_settings("official", method="mvfa")
    (tmp_path / "s.toml").write_text('preset = "official"\n')
    assert resolve_settings(method="mvfa", config=tmp_path / "s.toml") == official
    assert (
        resolve_settings(method="mvfa", overrides=["preset=equal", "preset=official"]) == official
    )
    assert resolve_settings(
        "equal", method="mvfa", overrides=["preset=official"]
    ) == resolve_settings(method="mvfa")
    with pytest.raises(SettingsError, match="preset 'fast' of mvfa"):
        resolve_settings(method="mvfa", overrides=["preset=fast"])


def test_a_setting_cannot_name_another_method():
    assert resolve_settings(method="mvfa", overrides=["method=mvfa"]) == resolve_settings(
        method="mvfa"
    )
    with pytest.raises(SettingsError, match="method = 'dra', but the method asked for is 'mvfa'"):
        resolve_settings(method="mvfa", overrides=["method=dra"])


def test_wrong_names_are_named():
    with pytest.raises(SettingsError, match=r"'patch-core'.*Did you mean 'patchcore'"):
        resolve_settings(method="patch-core")
    with pytest.raises(SettingsError, match=r"preset 'fast' of visualad.*equal, official"):
        resolve_settings("fast", method="visualad")
    with pytest.raises(SettingsError, match=r"options\.epoch'.*options\.epochs"):
        resolve_settings(method="visualad", overrides=["options.epoch=3"])
    with pytest.raises(SettingsError, match=r"options\.epochs = -1"):
        resolve_settings(method="mvfa", overrides=["options.epochs=-1"])


def test_abilities():
    assert [m for m, row in METHODS.items() if row.zero_shot == "no"] == [
        "normal_only",
        "nearest",
        "patchcore",
        "anomalydino",
    ]
    ignoring = [m for m, row in METHODS.items() if row.normal_only]
    assert ignoring == ["normal_only", "nearest", "patchcore", "anomalydino", "mediclip"]


def test_what_a_method_cannot_do_is_said_before_the_work():
    with pytest.raises(InputError, match="PatchCore has no zero-shot form"):
        fit_sources([], resolve_settings(method="patchcore"))
    with pytest.raises(InputError, match="no normal images"):
        fit_support([], resolve_settings(method="uniadet"))


@pytest.mark.parametrize("method", [name for name, peer in PEERS.items() if peer.uses_text])
def test_methods_with_text_refuse_an_encoder_without(method, tiny_folder, make_support):
    settings = resolve_settings(method=method, encoder={"name": str(tiny_folder), "input_px": 70})
    with pytest.raises(WeightsError, match="no text tower"):
        fit_support(make_support(), settings)


@pytest.mark.parametrize("method", [name for name, peer in PEERS.items() if peer.uses_text])
def test_no_weights_are_asked_for_that_would_not_do(method, make_support, tmp_path, monkeypatch):
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    settings = resolve_settings(method=method, encoder={"name": "dinov2-small"})
    for fit in (
        lambda: fit_support(make_support(), settings),
        lambda: find_method(method).load_encoder(settings.encoder, 0),
    ):
        with pytest.raises(WeightsError, match=r"dinov2-small has no text tower; use clip-vit-b16"):
            fit()


@pytest.mark.parametrize("method", [name for name, peer in PEERS.items() if peer.uses_text])
def test_a_missing_tokeniser_is_told_before_images_are_encoded(
    method, peer_settings, tiny_clip_folder, make_support, tmp_path
):
    for file in ("config.json", "model.safetensors"):
        shutil.copy(tiny_clip_folder / file, tmp_path / file)
    settings = peer_settings(method, encoder={"name": str(tmp_path)}, options=QUICK[method])
    said = []
    with pytest.raises(WeightsError, match="token"):
        fit_support(make_support(), settings, progress=lambda *args: said.append(args))
    assert said == []


QUICK = {
    "mvfa": {"epochs": 1, "batch_size": 22},
    "april_gan": {"epochs": 1},
    "madclip": {"epochs": 1, "copies": 1},
    "mediclip": {"epochs": 1, "variants": 1},
    "visualad": {"epochs": 1},
}


@pytest.fixture
def fit_named(peer_settings, make_support, phantoms):
    """fit_named(method, name, zero_shot, said="…"): with one name given, and one among the
    settings."""

    def fit(method, name, zero_shot=False, **options):
        settings = peer_settings(method, options={**QUICK[method], **options})
        if zero_shot:
            return fit_sources(phantoms[1:], settings, domain=name).card
        return fit_support(make_support(1, 1), settings, domain=name).card

    return fit


@pytest.mark.parametrize(
    ("method", "zero_shot"),
    [
        ("mvfa", False),
        ("mvfa", True),
        ("april_gan", False),
        ("april_gan", True),
        ("madclip", False),
    ],
)
def test_the_name_in_the_text_is_a_setting_of_the_fit(method, zero_shot, fit_named):
    cards = [fit_named(method, name, zero_shot) for name in ("", "Brain", "spine")]
    assert [card.settings.options.domain for card in cards] == ["", "Brain", "spine"]
    assert len({card.fingerprint for card in cards}) == 3
    assert fit_named(method, "Brain", zero_shot, domain="spine").fingerprint == cards[2].fingerprint


@pytest.mark.parametrize(
    ("method", "zero_shot"),
    [("visualad", False), ("visualad", True), ("mediclip", False), ("madclip", True)],
)
def test_a_name_that_no_text_says_is_none(method, zero_shot, fit_named, peer_settings):
    cards = [fit_named(method, name, zero_shot) for name in ("", "Brain")]
    given = peer_settings(method, options=QUICK[method])
    assert [card.settings for card in cards] == [given, given]
    assert cards[0].fingerprint == cards[1].fingerprint


@pytest.mark.parametrize("method", ["mvfa", "april_gan", "madclip"])
def test_a_fit_does_not_go_on_under_another_name(method, peer_settings, make_support, tmp_path):
    settings = peer_settings(method, options=QUICK[method])
    fit_support(make_support(1, 1), settings, domain="Brain", work_dir=tmp_path)
    with pytest.raises(OtherFitError, match="unfinished fit of other images or settings"):
        fit_support(make_support(1, 1), settings, domain="spine", work_dir=tmp_path)


def test_a_full_disk_has_a_remedy_that_there_is(peer_settings, make_support, tmp_path, monkeypatch):
    """Other methods have no group `training`."""

    def full(file, start, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(TrainingError, match=r"No space left.*another disk") as raised:
        fit_support(make_support(1, 1), peer_settings("uniadet"), work_dir=tmp_path)
    assert "--set" not in str(raised.value)
    assert not (tmp_path / "tokens.f32").exists()


@pytest.mark.parametrize("method", [peer.name for peer in PEERS.values() if peer.uses_text])
def test_random_weights_of_both_towers_need_no_files(method, make_support, queries, monkeypatch):
    entry, small = ENCODERS["clip-vit-b16"], {"num_hidden_layers": 4, "num_attention_heads": 2}
    small |= {"hidden_size": 16, "intermediate_size": 32, "projection_dim": 16}
    config, text = {**entry.config, **small}, {**entry.text_config, **small}
    changed = dataclasses.replace(entry, config=config, text_config=text)
    monkeypatch.setitem(ENCODERS, entry.name, changed)
    overrides = ["encoder.name=clip-vit-b16", "encoder.input_px=64", "options.epochs=1"]
    settings = resolve_settings(
        method=method, overrides=[*overrides, "encoder.random_weights=true"]
    )
    detector = fit_support(make_support(1, 1), settings)
    assert detector.model.text.shape == (2, 16)
    assert 0 <= detector.score(queries[0]).score <= 1
