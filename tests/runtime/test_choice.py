"""auto measures once, remembers, and never trades scores for speed."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import recap
from recap._process import usable_cores
from recap.errors import SettingsError
from recap.runtime import choose
from recap.runtime.choose import Chosen, Measured, choose_runtime, device_for, time_each
from recap.runtime.engines import machine_facts
from recap.runtime.record import ExportRecord
from recap.scoring.arrays import Arrays, as_output


class Fake:
    """A runtime of known speed and known error."""

    def __init__(self, name, seconds, error=0.0):
        self.name, self.seconds, self.error, self.calls = name, seconds, error, 0

    def run(self, pixels):
        self.calls += 1
        time.sleep(self.seconds)
        score = pixels.mean(axis=(1, 2, 3)) + np.float32(self.error)
        return Arrays(score, pixels[:, 0])

    def describe(self):
        return {"runtime": self.name, "version": "0", "threads": 1}


@pytest.fixture
def fakes(monkeypatch, tmp_path):
    """Every runtime is a fake one, and every graph is there."""
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    seconds = {"torch": 0.01, "onnx": 0.006, "openvino": 0.002}
    made = {name: Fake(name, value) for name, value in seconds.items()}
    record = ExportRecord(
        runtime="", versions={}, source="s", input_px=56, outputs=[], files={}, checked_on=1,
        largest_difference={},
    )  # fmt: skip
    monkeypatch.setattr(choose, "_open", lambda detector, kind, bundle, threads: made[kind])
    monkeypatch.setattr(choose, "TorchRuntime", lambda model, threads: made["torch"])
    monkeypatch.setattr(
        choose, "_usable", lambda *_: (dict.fromkeys(choose.FLOAT_KINDS, record), [])
    )
    return made


def test_auto_takes_the_fastest_and_says_why(fakes, saved):
    detector = recap.load(saved)
    chosen = choose_runtime(detector, "auto", saved)
    assert detector.runtime is chosen
    assert chosen.name == "openvino"
    assert chosen.milliseconds["torch"] > chosen.milliseconds["onnx"]
    facts = chosen.describe()
    assert facts["runtime"] == "openvino"
    assert "measured on this machine: torch 1" in facts["why"]
    json.dumps(facts)


def test_auto_measures_once_per_machine_and_threads(fakes, saved, monkeypatch):
    detector = recap.load(saved)
    first = choose_runtime(detector, "auto", saved)
    calls = fakes["onnx"].calls
    assert calls == choose.ROUNDS + 1
    assert choose_runtime(detector, "auto", saved).milliseconds == first.milliseconds
    assert fakes["onnx"].calls == calls
    choose_runtime(detector, "auto", saved, threads=1)
    assert fakes["onnx"].calls == 2 * calls
    monkeypatch.setattr(choose, "machine_facts", lambda: {"processor": "another"})
    choose_runtime(detector, "auto", saved)
    assert fakes["onnx"].calls == 3 * calls


def test_a_damaged_memory_is_measured_anew(fakes, saved, tmp_path):
    choose_runtime(recap.load(saved), "auto", saved)
    (kept,) = (tmp_path / "cache" / "runtimes").iterdir()
    kept.write_text("{", encoding="utf-8")
    calls = fakes["onnx"].calls
    choose_runtime(recap.load(saved), "auto", saved)
    assert fakes["onnx"].calls == 2 * calls


def test_a_cache_that_cannot_be_written_is_no_error(fakes, saved, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "file"))
    assert choose_runtime(recap.load(saved), "auto", saved).name == "openvino"


def test_what_disagrees_with_torch_here_is_left_out(fakes, saved):
    fakes["openvino"].error = 2e-4
    chosen = choose_runtime(recap.load(saved), "auto", saved)
    assert chosen.name == "onnx"
    assert "openvino left out (differs from torch by 0.0002" in chosen.why


def test_side_by_side_is_measured_by_itself_and_per_image(fakes, saved):
    detector = recap.load(saved)
    alone = choose_runtime(detector, "auto", saved, threads=4)
    together = choose_runtime(detector, "auto", saved, threads=4, side_by_side=True)
    assert together.milliseconds["torch"] < alone.milliseconds["torch"] / 2


def test_torch_stays_unless_another_is_clearly_faster():
    def fastest(**milliseconds):
        return Measured(milliseconds=milliseconds, left_out={}, machine={}).fastest(choose.GAIN)

    assert fastest(torch=10, onnx=9.9) == "torch"
    assert fastest(torch=10, onnx=9.5) == "onnx"
    assert fastest(torch=10, onnx=9.5, openvino=8) == "openvino"
    assert fastest(torch=10, openvino=12) == "torch"


def test_without_graphs_auto_is_torch_and_says_so(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path))
    detector = recap.load(saved, runtime="auto")
    assert detector.runtime.name == "torch"
    assert "recap export" in detector.runtime.describe()["why"]
    assert not (tmp_path / "runtimes").exists()


def test_torch_as_a_runtime_is_the_model_itself(saved, pictures):
    plain, injected = recap.load(saved), recap.load(saved, runtime="torch")
    for picture in pictures:
        one, two = plain.score(picture), injected.score(picture)
        assert (one.score, one.score_prototype, one.score_memory) == (
            two.score,
            two.score_prototype,
            two.score_memory,
        )
        assert np.array_equal(one.map, two.map)
        assert np.array_equal(one.drift, two.drift)
    assert injected.runtime.describe()["why"] == "asked for"


@pytest.mark.parametrize(
    ("name", "threads", "message"),
    [("tensorrt", None, "Choose from: torch, onnx"), ("torch", 0, "threads = 0")],
)
def test_impossible_wishes_are_told(name, threads, message, saved):
    with pytest.raises(SettingsError, match=message):
        choose_runtime(recap.load(saved), name, Path(saved), threads)


def test_arrays_become_an_output_and_lack_what_is_not_there():
    output = as_output(Fake("torch", 0).run(np.ones((2, 3, 4, 4), np.float32)))
    assert output.score.tolist() == [1, 1]
    assert output.map.shape == (2, 4, 4)
    assert output.scores == {}
    assert output.drift is None


def test_rounds_take_turns_and_keep_the_best():
    class Uneven(Fake):
        def run(self, pixels):
            self.seconds = 0.02 if self.calls == 1 else 0.001
            return super().run(pixels)

    found = time_each({"torch": Uneven("torch", 0)}, 8)
    assert 1 <= found.milliseconds["torch"] < 20


def test_the_machine_is_named():
    facts = machine_facts()
    assert facts["processor"]
    assert int(facts["cores"]) == usable_cores() >= 1
    assert "torch" in facts


def test_a_choice_scores_as_its_runtime_does():
    fake = Fake("onnx", 0)
    pixels = np.ones((1, 3, 4, 4), np.float32)
    assert Chosen(fake, "asked for").run(pixels).score == fake.run(pixels).score


@pytest.mark.parametrize(
    ("device", "runtime", "where"),
    [
        ("auto", None, "cuda:0"),
        ("auto", "auto", "cuda:0"),
        ("auto", "torch", "cuda:0"),
        ("auto", "openvino", "cpu"),
        ("auto", "onnx", "cpu"),
        ("cuda", "onnx", "cuda:0"),  # refused where the runtime is chosen, as it was asked for
        ("cpu", None, "cpu"),
    ],
)
def test_auto_is_a_device_that_the_runtime_can_use(device, runtime, where, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert device_for(device, runtime) == where
