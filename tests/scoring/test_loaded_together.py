"""Detectors that are loaded together share an encoder, and what it gave for an image."""

import numpy as np
import pytest
from PIL import Image as PillowImage

import recap
from recap.encoders.vit import Encoder
from recap.runtime.choose import load_many

SIDE = ["few-shot", "normal-only", "zero-shot", "shared anchors"]


@pytest.fixture
def bundles(detectors, tmp_path):
    paths = {kind: tmp_path / f"{kind}.recap" for kind in detectors}
    for kind, path in paths.items():
        detectors[kind].save(path)
    return paths


def test_loaded_together_they_share_an_encoder(bundles, detectors, pictures):
    loaded = load_many([bundles[kind] for kind in SIDE])
    assert len({id(detector.model.encoder) for detector in loaded}) == 1
    for kind, two in zip(SIDE, loaded, strict=True):
        assert detectors[kind].score(pictures[1]).score == two.score(pictures[1]).score


def test_other_encoder_settings_are_not_shared(domains, bundles, tiny_settings, tmp_path):
    settings = tiny_settings(encoder={"layers": (2, 4)})
    valid = domains[0].root / "valid" / "good" / "img"
    recap.fit(valid, settings=settings).save(tmp_path / "two.recap")
    two, four = load_many([tmp_path / "two.recap", bundles["normal-only"]])
    assert two.model.encoder is not four.model.encoder


def test_an_image_is_encoded_once_for_detectors_that_leave_the_encoder_as_it_is(
    bundles, tmp_path, monkeypatch
):
    """Adapters that write back make every pass their own; bits are those of each alone."""
    passes, original = [], Encoder.embed

    def embed(self, pixels):
        passes.extend(pixels)
        return original(self, pixels)

    monkeypatch.setattr(Encoder, "embed", embed)
    (tmp_path / "in").mkdir()
    for number in range(3):
        values = np.random.default_rng(number).integers(0, 256, (40, 60), np.uint8)
        PillowImage.fromarray(values).save(tmp_path / "in" / f"{number}.png")
    given = [bundles[kind] for kind in SIDE]
    recap.score_folder(given, tmp_path / "in", tmp_path / "together")
    assert len(passes) == 3 + len(given)  # each scores a blank image as it is opened
    passes.clear()
    recap.score_folder([*given, bundles["write-back"]], tmp_path / "in", tmp_path / "all")
    assert len(passes) == 3 + 3 + len(given) + 1
    for kind in SIDE:
        recap.score_folder(bundles[kind], tmp_path / "in", tmp_path / "alone" / kind)
        for name in ("scores.csv", *(f"maps/{number}.png.npy" for number in range(3))):
            alone, together = (tmp_path / run / kind / name for run in ("alone", "together"))
            assert alone.read_bytes() == together.read_bytes()
