import errno
import json
import os

import numpy as np
import pytest
import torch

import recap
from recap.encoders.load import load_encoder
from recap.errors import TrainingError
from recap.methods import features
from recap.methods.features import FeatureStore
from recap.methods.recap.head import ReCAP
from recap.methods.recap.regimes import build
from recap.progress import silent

COUNT = 5


@pytest.fixture(params=["fast", "paper"])
def model(request, tiny_settings):
    settings = tiny_settings(request.param)
    torch.manual_seed(0)
    return build(load_encoder(settings.encoder), settings, "both")


@pytest.fixture
def pixels():
    return torch.rand(COUNT, 3, 70, 70, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def make(model, pixels):
    def make_store(folder=None, limit=1e9, fill=True):
        store = FeatureStore(model, pixels.__getitem__, COUNT, limit_bytes=limit, folder=folder)
        if fill:
            store.fill(silent)
        return store

    return make_store


def everything(store):
    return torch.cat([store[[3, 1]], store[[0, 2, 4]]])


def test_memory_disk_and_recomputed_are_the_same(make, tmp_path, model, pixels):
    expected = torch.cat([model.encode(pixels[[i]]) for i in (3, 1, 0, 2, 4)])
    memory, disk, none = make(), make(tmp_path), make(limit=0)
    assert (memory.kept, disk.kept, none.kept) == (True, True, False)
    assert len(memory) == COUNT
    for store in (memory, disk, none):
        assert torch.equal(everything(store), expected)
    assert (tmp_path / "tokens.f32").stat().st_size == 4 * expected.numel()


def test_the_limit_is_the_size_of_the_tokens(make, model, pixels):
    size = 4 * COUNT * model.encode(pixels[[0]]).numel()
    assert make(limit=size, fill=False).kept
    assert not make(limit=size - 1, fill=False).kept


def test_tokens_do_not_depend_on_who_is_encoded_together(make, monkeypatch):
    together = everything(make())
    monkeypatch.setattr(features, "ENCODE_AT_ONCE", 1)
    assert torch.equal(everything(make()), together)


def test_above_the_limit_nothing_is_written(make, tmp_path):
    make(tmp_path, limit=0)
    assert list(tmp_path.iterdir()) == []


def test_finished_tokens_are_read_not_computed(make, tmp_path, count_calls):
    expected = everything(make(tmp_path))
    encoded = count_calls(ReCAP, "encode")
    again = make(tmp_path)
    assert torch.equal(everything(again), expected)
    assert len(encoded) == 1  # to learn the shape


def tear(text):
    return lambda folder: (folder / "tokens.json").write_text(text)


def cut_tokens(folder):
    tokens = folder / "tokens.f32"
    tokens.write_bytes(tokens.read_bytes()[:-4])


@pytest.mark.parametrize(
    "damage",
    [
        tear('{"shape": [5, 4'),
        tear("[]"),
        tear("{}"),
        tear('{"shape": [1, 2], "done": 5}'),
        lambda folder: (folder / "tokens.json").unlink(),
        lambda folder: (folder / "tokens.f32").unlink(),
        cut_tokens,
    ],
)
def test_damaged_tokens_are_computed_again(damage, make, tmp_path):
    expected = everything(make(tmp_path))
    damage(tmp_path)
    assert torch.equal(everything(make(tmp_path)), expected)
    assert json.loads((tmp_path / "tokens.json").read_text())["done"] == COUNT


def test_only_marked_tokens_are_trusted(make, tmp_path, monkeypatch):
    """What was written after the last mark may be half written."""
    monkeypatch.setattr(features, "ENCODE_AT_ONCE", 2)
    expected = everything(make(tmp_path))
    mark = json.loads((tmp_path / "tokens.json").read_text())
    (tmp_path / "tokens.json").write_text(json.dumps({**mark, "done": 2}))
    tokens = np.memmap(tmp_path / "tokens.f32", np.float32, "r+", shape=tuple(mark["shape"]))
    tokens[2:] = -7
    tokens.flush()
    assert torch.equal(everything(make(tmp_path)), expected)


def test_a_full_disk_has_a_remedy(arrays, tiny_settings, tmp_path, monkeypatch):
    def full(file, start, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    folder = tmp_path / "work"
    with pytest.raises(TrainingError, match=r"GB for encoded.*No space left.*training\.cache_gb=0"):
        recap.fit(**arrays, settings=tiny_settings(), work_dir=folder)
    assert not (folder / "tokens.f32").exists()


def test_progress_counts_up_to_the_end(make):
    steps = []
    make(fill=False).fill(lambda stage, done, total, detail: steps.append((stage, done, total)))
    assert steps == [("encode", 0, COUNT), ("encode", COUNT, COUNT)]
