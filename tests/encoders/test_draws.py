import pytest
import torch
import transformers

from recap.encoders.load import load_encoder, seed_draws, seeded
from recap.methods.recap.regimes import build
from recap.methods.registry import resolve_settings


def test_draws_are_ones_own():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with seeded(3):
        one = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(3):
        assert torch.equal(torch.rand(4), one)
    with seeded():
        assert not torch.equal(torch.rand(4), one)


def test_seeds_are_those_of_torch_and_no_gpu_is_told(monkeypatch):
    """Where there is none, torch keeps a stack for each seed until there is one."""
    told: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", told.append)
    with seeded():
        torch.manual_seed(7)
        expected = torch.rand(4)
        assert told == [7]
        seed_draws(7, torch.device("cpu"))
        assert torch.equal(torch.rand(4), expected)
        assert told == [7]
        seed_draws(8, torch.device("cuda"))
        assert told == [7, 8]


def test_no_gpu_is_asked(monkeypatch):
    def refuse(*args):
        raise AssertionError("a GPU was asked")

    monkeypatch.setattr(torch.cuda, "device_count", refuse)
    monkeypatch.setattr(torch.cuda, "get_rng_state", refuse)
    with seeded(1):
        pass


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_start_does_not_depend_on_who_loaded_the_encoder(elsewhere, tmp_path, monkeypatch):
    """transformers draws numbers for a pooling head that the file lacks."""
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32,
        patch_size=14, image_size=70,
    )  # fmt: skip
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "vit")
    encoder = {"name": str(tmp_path / "vit"), "input_px": 70}
    settings = resolve_settings("fast", encoder=encoder)
    given = load_encoder(settings.encoder)
    inside = build(load_encoder(settings.encoder), settings, "both")
    if elsewhere:
        torch.rand(3)
    outside = build(given, settings, "both")
    assert torch.equal(inside.maps.adapters[0].down.weight, outside.maps.adapters[0].down.weight)
