import re

import pytest

from recap.encoders.registry import (
    ENCODERS,
    FAMILIES,
    find,
    patch_tensors,
    unknown_encoder,
    vision_tower,
)
from recap.errors import WeightsError


def test_the_default_is_pinned():
    assert ENCODERS["dinov2-small"].sha256 is not None


@pytest.mark.parametrize("entry", ENCODERS.values(), ids=lambda entry: entry.name)
def test_entries_are_well_formed(entry):
    assert ENCODERS[entry.name] is entry
    assert entry.model_type in FAMILIES
    assert re.fullmatch(r"[\w-]+/[\w.-]+", entry.hub_id)
    assert re.fullmatch(r"[0-9a-f]{40}", entry.revision)
    assert entry.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
    assert entry.config["hidden_size"] % entry.config["num_attention_heads"] == 0
    assert entry.config["image_size"] % entry.config["patch_size"] == 0
    assert all(0 < value < 1 for value in (*entry.mean, *entry.std))
    assert entry.licence


def test_no_two_entries_share_a_pin():
    pins = [entry.sha256 for entry in ENCODERS.values() if entry.sha256]
    assert len(set(pins)) == len(pins)


# Parameters in millions, as the papers of DINOv2, CLIP and ViT state them.
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("dinov2-small", 22),
        ("dinov2-base", 86.6),
        ("dinov2-large", 304),
        ("clip-vit-b16", 86),
        ("clip-vit-l14-336", 304),
        ("rad-dino", 86.6),
        ("phikon", 86),
    ],
)
def test_configurations_build_models_of_the_published_size(name, millions):
    torch = pytest.importorskip("torch")
    from transformers import CONFIG_MAPPING, AutoModel

    entry = ENCODERS[name]
    config = CONFIG_MAPPING[entry.model_type](**entry.config)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    counted = sum(p.numel() for p in model.parameters()) / 1e6
    assert counted == pytest.approx(millions, rel=0.02)


def test_families_agree_with_the_encoder_module():
    assert set(patch_tensors()) == {*FAMILIES, "resnet"}  # DRA's backbone is kept here too
    assert vision_tower("clip") == "clip_vision_model"
    assert vision_tower("dinov2") == "dinov2"


def test_hub_ids_find_their_entry():
    assert find("facebook/dinov2-small") is ENCODERS["dinov2-small"]
    assert find("facebook/other") is None


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("dinov2-smal", "dinov2-small"), ("DINOv2-Large", "dinov2-large"), ("raddino", "rad-dino")],
)
def test_unknown_names_get_the_nearest(wrong, meant):
    with pytest.raises(WeightsError, match=f"'{wrong}'.* Did you mean '{meant}'"):
        raise unknown_encoder(wrong)


def test_a_name_near_nothing_gets_the_list():
    with pytest.raises(WeightsError, match="Known names: dinov2-small, ") as caught:
        raise unknown_encoder("zzz")
    assert "Did you mean" not in str(caught.value)
