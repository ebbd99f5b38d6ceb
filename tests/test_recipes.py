"""The recipes of CONTRIBUTING, followed literally with a toy of each kind."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import recap
from recap.config import Section
from recap.encoders import registry
from recap.encoders.registry import FAMILIES, Family, embed_plain
from recap.methods.recap import prototypes, settings
from recap.methods.recap.prototypes import CONDITIONING, Condition, PrototypePair, recentre
from recap.metrics import streaming
from recap.metrics.streaming import ImageMetrics

CONTRIBUTING = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"


@pytest.mark.parametrize(
    "recipe",
    ["an encoder", "an encoder family", "a method", "a conditioning variant", "a metric"],
)
def test_there_is_a_recipe_and_what_it_names_is_there(recipe):
    text = CONTRIBUTING.read_text(encoding="utf-8")
    body = text.split(f"## Adding {recipe}\n")[1].split("\n## ")[0]
    root = CONTRIBUTING.parent
    for name in re.findall(r"`((?:src|tests|examples|docs)/[^`*]+)`", body):
        assert (root / name).exists(), name


class MirroredConfig(transformers.Dinov2Config):
    model_type = "mirrored"


class MirroredModel(transformers.Dinov2Model):
    config_class = MirroredConfig


def test_an_encoder_family_is_one_row_and_one_function(tmp_path, monkeypatch):
    """A DINOv2 under another name, whose pixels come mirrored."""

    def embed_mirrored(model, pixels, interpolate):
        return embed_plain(model, pixels.flip(-1), interpolate)

    row = FAMILIES["dinov2"]._replace(
        model_class=f"{__name__}:MirroredModel",
        config_class=f"{__name__}:MirroredConfig",
        embed=embed_mirrored,
    )
    monkeypatch.setitem(FAMILIES, "mirrored", row)
    config = MirroredConfig(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64,
        patch_size=14, image_size=70,
    )  # fmt: skip
    folder = tmp_path / "encoder"
    MirroredModel(config).save_pretrained(folder)
    normal = [np.random.default_rng(n).random((70, 70)).astype(np.float32) for n in range(3)]
    chosen = recap.resolve_settings(encoder={"name": str(folder), "input_px": 70}, method="nearest")
    detector = recap.fit(normal, settings=chosen)
    assert isinstance(detector.model.encoder.family, Family)
    lesion = normal[0].copy()
    lesion[14:28, 14:28] = 1
    assert detector.score(lesion).score > detector.score(normal[0]).score


def test_a_family_of_another_package_comes_by_an_entry_point(monkeypatch):
    row = FAMILIES["dinov2"]

    class Entry:
        name, value = "theirs", "package:ROW"

        def load(self):
            return row

    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry()])
    registry._of_others.cache_clear()
    try:
        assert registry.all_families()["theirs"] is row
    finally:
        registry._of_others.cache_clear()


def test_a_conditioning_variant_is_one_row_and_one_function(monkeypatch, tiny_folder):
    def half(base, projected, gate, eta):
        return recentre(base, projected, gate, eta / 2)

    monkeypatch.setitem(CONDITIONING, "half", Condition(half, strength=lambda gate, eta: eta / 2))
    torch.manual_seed(0)
    pair = PrototypePair(16, "half", 0.2)
    tokens = torch.randn(2, 5, 16)
    drift = prototypes.find_drift([pair], pair(tokens)[None])[0]
    assert (drift > 0).all()
    assert (drift <= pair.drift_bound() + 1e-6).all()
    with pytest.raises(recap.RecapError, match="conditioning"):
        recap.resolve_settings(model={"conditioning": "half"})
    assert "gated" in settings.Conditioning.__args__


def test_a_metric_is_one_function_and_one_row(monkeypatch):
    def median_gap(scores, labels):
        labels = np.asarray(labels, bool)
        return float(np.median(scores[labels]) - np.median(scores[~labels]))

    monkeypatch.setitem(streaming.IMAGE_METRICS, "median_gap", median_gap)
    images = ImageMetrics()
    images.update([0.1, 0.2, 0.9, 0.7], [0, 0, 1, 1])
    found = images.compute()
    assert found["median_gap"] == pytest.approx(0.65)
    assert list(found)[-1] == "median_gap"


def test_a_method_is_one_row_and_one_module():
    """`examples/mine` is installed and run in tests/methods/test_contract.py."""
    example = CONTRIBUTING.parent / "examples" / "mine"
    assert 'mine = "recap_mine:METHOD"' in (example / "pyproject.toml").read_text(encoding="utf-8")
    assert len((example / "recap_mine.py").read_text(encoding="utf-8").splitlines()) < 80
    assert issubclass(Section, object)
