import os
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
from PIL import Image as PillowImage

from recap import _process
from recap.data import copies as store
from recap.data.copies import read_fingerprints
from recap.errors import InputError


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(5):
        pixels = rng.integers(0, 256, (20, 20), np.uint8)
        PillowImage.fromarray(pixels).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


@pytest.fixture
def read(monkeypatch):
    """Files that were really read."""
    paths = []
    really = store.fingerprint

    def counting(path):
        paths.append(path)
        return really(path)

    monkeypatch.setattr(store, "fingerprint", counting)
    return paths


def same(one, other):
    return (one.sha256, one.pixels, one.patient, one.thumb.tolist()) == (
        other.sha256,
        other.pixels,
        other.patient,
        other.thumb.tolist(),
    )


def test_what_is_kept_is_not_read_again(files, read, tmp_path):
    cache = tmp_path / "new" / "cache.sqlite"
    first = read_fingerprints(files, cache)
    assert read == files
    again = read_fingerprints(files, cache)
    assert read == files
    assert list(again) == files
    assert all(same(first[path], again[path]) for path in files)


def test_a_changed_file_is_read_again(files, read, tmp_path):
    cache = tmp_path / "cache.sqlite"
    before = read_fingerprints(files, cache)
    PillowImage.new("L", (20, 20), 7).save(files[2])
    os.utime(files[3], ns=(5, 5))
    read.clear()
    after = read_fingerprints(files, cache)
    assert read == files[2:4]
    assert before[files[2]].pixels != after[files[2]].pixels


def test_a_stopped_run_goes_on(files, read, tmp_path):
    def stop(stage, done, total, detail):
        if done == 3:
            raise KeyboardInterrupt

    cache = tmp_path / "cache.sqlite"
    with pytest.raises(KeyboardInterrupt):
        read_fingerprints(files, cache, progress=stop)
    read.clear()
    read_fingerprints(files, cache)
    assert read == files[3:]


def test_another_format_is_made_anew(files, read, tmp_path, monkeypatch):
    cache = tmp_path / "cache.sqlite"
    read_fingerprints(files, cache)
    read.clear()
    monkeypatch.setattr(store, "_FORMAT", store._FORMAT + 1)
    read_fingerprints(files, cache)
    assert read == files


def test_problems_are_tried_again(files, read, tmp_path):
    files[0].write_bytes(b"damaged")
    for _ in range(2):
        made = read_fingerprints(files, tmp_path / "cache.sqlite")
        assert files[0].name in made[files[0]].problem
    assert read == [*files, files[0]]


def test_a_file_that_is_no_cache_is_named(files, tmp_path):
    cache = tmp_path / "cache.sqlite"
    cache.write_bytes(b"something else entirely" * 100)
    with pytest.raises(InputError, match=r"cache\.sqlite: cannot be used .* Delete it"):
        read_fingerprints(files, cache)
    assert cache.read_bytes().startswith(b"something else")


def test_progress_counts_what_was_kept(files, tmp_path):
    steps = []
    read_fingerprints(files[:2], tmp_path / "c")
    read_fingerprints(files, tmp_path / "c", progress=lambda *step: steps.append(step[1]))
    assert steps == [2, 3, 4, 5]


class FragilePool:
    """Runs tasks here, and dies of one file."""

    fatal = "3.png"

    def __init__(self, workers, preload):
        self.dead = False

    def submit(self, task, work, chunk):
        if self.dead:  # a broken pool takes nothing more
            raise BrokenProcessPool
        future = Future()
        self.dead = any(path.name == self.fatal for path in chunk)
        if self.dead:
            future.set_exception(BrokenProcessPool())
        else:
            future.set_result(task(work, chunk))
        return future

    def shutdown(self, **how):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def test_a_file_that_kills_its_process_costs_only_itself(files, monkeypatch):
    monkeypatch.setattr(_process, "process_pool", FragilePool)
    monkeypatch.setattr(store, "_CHUNK", 2)
    made = read_fingerprints(files, workers=2)
    assert list(made) == files
    assert [bool(made[path].problem) for path in files] == [False, False, False, True, False]
    assert "3.png: the process that read it died" in made[files[3]].problem


@pytest.mark.slow
def test_processes_give_the_same(files):
    alone, several = read_fingerprints(files, workers=1), read_fingerprints(files, workers=2)
    assert all(same(alone[path], several[path]) for path in files)
