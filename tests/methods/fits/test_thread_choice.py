"""Training on as many threads as are fastest, the same number each time."""

import json
import threading
import time

import pytest
import torch

import recap
from recap.encoders.load import load_encoder
from recap.methods import training as thread_choice
from recap.methods.features import encode_each
from recap.methods.recap.head import ReCAP
from recap.methods.recap.regimes import build
from recap.methods.training import fastest, training_threads


@pytest.fixture
def two_threads(monkeypatch, tmp_path):
    """As on a machine with two cores, of a user who said nothing of threads."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(thread_choice, "cache_dir", lambda: tmp_path / "cache")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield tmp_path / "cache" / thread_choice.FILE
    assert torch.get_num_threads() == 2, "a fit must leave torch as it was"
    torch.set_num_threads(before)


def slower_on(count):
    return lambda: time.sleep(0.02 if torch.get_num_threads() == count else 0.001)


@pytest.mark.parametrize(("slow", "fast"), [(1, 2), (2, 1)])
def test_the_faster_number_is_taken_and_kept(two_threads, slow, fast):
    model = torch.nn.Linear(3, 2)
    with training_threads(model, slower_on(slow), steps=1000):
        assert torch.get_num_threads() == fast
    # What is kept decides from now on, so that the same fit has the same bytes.
    with training_threads(model, slower_on(fast), steps=1000):
        assert torch.get_num_threads() == fast
    assert list(json.loads(two_threads.read_text()).values()) == [fast]


def test_a_damaged_memory_is_measured_again(two_threads):
    two_threads.parent.mkdir()
    two_threads.write_text("{")
    with training_threads(torch.nn.Linear(3, 2), slower_on(2), steps=1000):
        assert torch.get_num_threads() == 1


def test_what_the_user_asked_for_is_not_measured(two_threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with training_threads(torch.nn.Linear(3, 2), slower_on(2), steps=1000):
        assert torch.get_num_threads() == 2
    assert not two_threads.exists()


def test_a_short_training_is_not_measured(two_threads):
    with training_threads(torch.nn.Linear(3, 2), slower_on(2), steps=10):
        assert torch.get_num_threads() == 2


def test_one_slow_lap_decides_nothing(two_threads):
    laps = iter([0, 0, 0.05, 0.002, 0.001, 0.002] + [0.001, 0.002] * 10)
    assert fastest(lambda: time.sleep(next(laps)), (2, 1)) == 2
    torch.set_num_threads(2)


def test_measuring_changes_no_bit(two_threads, monkeypatch, arrays, tiny_settings, bytes_of):
    settings = tiny_settings("recap", training={"epochs": 60})
    monkeypatch.setattr(thread_choice, "fastest", lambda step, counts: [step(), step(), 1][-1])
    measured = recap.fit(**arrays, settings=settings)
    assert list(json.loads(two_threads.read_text()).values()) == [1]
    kept = recap.fit(**arrays, settings=settings)
    assert bytes_of(measured) == bytes_of(kept)


def test_encoding_has_the_same_bits_on_one_thread_and_two(two_threads, tiny_settings):
    settings = tiny_settings("recap")
    model = build(load_encoder(settings.encoder), settings, "masks")
    pixels = torch.rand(5, 3, 70, 70, generator=torch.Generator().manual_seed(1))
    both = list(encode_each(model, pixels.__getitem__, range(5)))
    torch.set_num_threads(1)
    one = list(encode_each(model, pixels.__getitem__, range(5)))
    torch.set_num_threads(2)
    assert all(torch.equal(a, b) for a, b in zip(both, one, strict=True))


def test_fitting_encodes_images_side_by_side_on_one_thread_each(
    two_threads, monkeypatch, arrays, tiny_settings
):
    """Two images must be in the encoder at once, or the barrier breaks."""
    met, seen, original = threading.Barrier(2, timeout=30), [], ReCAP.encode

    def encode(self, pixels):
        if threading.current_thread() is not threading.main_thread() and len(seen) < 2:
            seen.append(torch.get_num_threads())
            met.wait()
        return original(self, pixels)

    monkeypatch.setattr(ReCAP, "encode", encode)
    recap.fit(**arrays, settings=tiny_settings("recap", training={"epochs": 1}))
    assert seen == [1, 1]
