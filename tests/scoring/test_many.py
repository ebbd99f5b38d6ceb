"""Many detectors over one pass of the encoder say what each says alone."""

import copy

import numpy as np
import pytest
from PIL import Image as PillowImage

from recap.encoders.memo import encoder_key
from recap.methods.registry import resolve_settings
from recap.runtime.choose import load_many
from recap.scoring.detector import Detector
from recap.scoring.many import score_many

SIDE = ["few-shot", "normal-only", "zero-shot", "shared anchors"]


def same(one, two):
    numbers = ("score", "score_prototype", "score_memory", "source", "decision")
    arrays = ("map", "drift", "descriptor")
    return all(getattr(one, n) == getattr(two, n) for n in numbers) and all(
        np.array_equal(getattr(one, n), getattr(two, n)) for n in arrays
    )


@pytest.fixture
def encoded(detectors, monkeypatch):
    """Counts the passes of every encoder."""
    from recap.encoders.vit import Encoder

    passes = []
    original = Encoder.embed

    def embed(self, pixels):
        passes.append(self)
        return original(self, pixels)

    monkeypatch.setattr(Encoder, "embed", embed)
    return passes


def test_all_kinds_together_give_the_same_bits(detectors, pictures):
    kinds = list(detectors.values())
    for picture in pictures:
        for one, two in zip(kinds, score_many(kinds, picture), strict=True):
            assert same(one.score(picture), two)


def test_side_adapters_share_one_pass(detectors, pictures, encoded):
    side = [detectors[kind] for kind in SIDE]
    score_many(side, pictures[0])
    assert len(encoded) == 1
    score_many([*side, detectors["write-back"]], pictures[0])
    assert len(encoded) == 3  # its adapters change what later blocks see
    assert score_many([], pictures[0]) == []


def test_a_file_is_read_as_each_detector_reads(detectors, tmp_path, monkeypatch):
    file = tmp_path / "picture.png"
    PillowImage.fromarray(np.random.default_rng(1).integers(0, 256, (40, 60), np.uint8)).save(file)
    side = [detectors[kind] for kind in SIDE]
    for one, two in zip(side, score_many(side, str(file)), strict=True):
        assert same(one.score(file), two)


def test_what_sets_encoders_apart(detectors, monkeypatch):
    one = detectors["few-shot"].model.encoder
    other = detectors["zero-shot"].model.encoder
    assert encoder_key(one) == encoder_key(other)
    for name, value in (("input_px", 84), ("layers", (1, 2)), ("interpolate", True)):
        with monkeypatch.context() as patch:
            patch.setattr(other, name, value)
            assert encoder_key(one) != encoder_key(other), name
    for encoder in (one, other):
        monkeypatch.setattr(encoder, "checksum", "random")
    assert (encoder_key(one) == encoder_key(other)) == (one is other)


def test_a_runtime_of_its_own_is_used(detectors, pictures, monkeypatch):
    detector, seen = detectors["few-shot"], []

    class Counting:
        name = "counting"

        def run(self, pixels):
            from recap.runtime.engines import TorchRuntime

            seen.append(len(pixels))
            return TorchRuntime(detector.model).run(pixels)

    monkeypatch.setattr(detector, "runtime", Counting())
    score_many([detectors["zero-shot"], detector], pictures[0])
    assert seen == [1]


def test_loaded_together_they_share_an_encoder(detectors, pictures, tmp_path, encoded):
    paths = []
    for kind in SIDE:
        paths.append(tmp_path / f"{kind}.recap")
        detectors[kind].save(paths[-1])
    loaded = load_many(paths)
    assert len({id(detector.model.encoder) for detector in loaded}) == 1
    for kind, two in zip(SIDE, score_many(loaded, pictures[1]), strict=True):
        assert same(detectors[kind].score(pictures[1]), two)


def test_other_encoder_settings_are_not_shared(domains, detectors, tiny_settings, tmp_path):
    import recap

    settings = tiny_settings(encoder={"layers": (2, 4)})
    assert settings != resolve_settings("fast")
    valid = domains[0].root / "valid" / "good" / "img"
    recap.fit(valid, settings=settings).save(tmp_path / "two.recap")
    detectors["normal-only"].save(tmp_path / "four.recap")
    two, four = load_many([tmp_path / "two.recap", tmp_path / "four.recap"])
    assert two.model.encoder is not four.model.encoder
    assert encoder_key(two.model.encoder) != encoder_key(four.model.encoder)


def test_the_same_weights_run_otherwise_are_not_shared(detectors):
    one = detectors["normal-only"]
    two = Detector(copy.deepcopy(one.model), one.card)
    assert encoder_key(two.model.encoder) == encoder_key(one.model.encoder)
    two.model.encoder.model.config.layer_norm_eps = 0.1
    assert encoder_key(two.model.encoder) != encoder_key(one.model.encoder)
