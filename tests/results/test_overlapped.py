"""Reading, scoring and writing overlap: nothing but the time may change."""

import json
import shutil
import threading

import numpy as np
import pytest
import torch

from folder_runs import score_case, score_to_folder
from recap.data.cases import Found, find_cases
from recap.errors import InputError
from recap.results.table import Shard
from recap.runtime.engines import Cores, TorchRuntime
from recap.scoring.detector import Detector
from recap.scoring.predict import fitting_batch


@pytest.fixture(autouse=True)
def four_threads():
    """As on a machine with four cores: batches run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    assert torch.get_num_threads() == 4, "a run must leave torch as it was"
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def many(domains, tmp_path_factory):
    """Twelve pictures, two of them damaged."""
    folder = tmp_path_factory.mktemp("many")
    files = sorted(f for f in (domains[0].root / "test").rglob("img/*.png"))
    for number in range(12):
        shutil.copy(files[number % len(files)], folder / f"{number:02d}.png")
    for number in (3, 7):
        (folder / f"{number:02d}.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    return find_cases([folder], folder / "no archives").cases


@pytest.fixture(scope="module")
def whole(few_shot, many, tmp_path_factory):
    """The folder of a run with one thread each."""
    out = tmp_path_factory.mktemp("whole")
    score_to_folder(few_shot, many, out, draw, workers=1, batch=1)
    return out


def draw(case, prediction, path):
    with path.open("wb") as file:
        np.save(file, case.images[0].pixels + prediction.map)


def contents(out):
    """Every file but manifests and the tables of shards."""
    found = (path for path in out.rglob("*") if path.is_file())
    kept = (p for p in found if not p.name.startswith("manifest") and "-of-" not in p.name)
    return {path.relative_to(out): path.read_bytes() for path in kept}


@pytest.mark.parametrize(("workers", "batch"), [(1, 5), (4, 1), (3, 4)])
def test_the_same_bits_with_any_number_of_workers_and_any_batch(
    workers, batch, few_shot, many, whole, tmp_path
):
    score_to_folder(few_shot, many, tmp_path, draw, workers=workers, batch=batch)
    assert contents(tmp_path) == contents(whole)


def test_a_processor_scores_one_image_per_core(few_shot, many, tmp_path, monkeypatch):
    together, met, original = [], threading.Barrier(4, timeout=30), Detector.raw_output

    def output(self, images):
        if len(together) < 4:
            together.append(torch.get_num_threads())
            met.wait()  # breaks, and fails the run, unless four are here at once
        return original(self, images)

    monkeypatch.setattr(Detector, "raw_output", output)
    score_to_folder(few_shot, many, tmp_path, draw)
    assert together == [1, 1, 1, 1]


def test_images_at_a_time(few_shot, monkeypatch):
    assert [fitting_batch(few_shot, wanted) for wanted in (None, 1, 3, 100)] == [4, 1, 3, 4]
    monkeypatch.setattr(few_shot, "runtime", TorchRuntime(few_shot.model))
    assert fitting_batch(few_shot, 3) == 1  # opened for one image on all cores
    monkeypatch.setattr(few_shot, "runtime", TorchRuntime(few_shot.model, Cores(2, 2)))
    assert fitting_batch(few_shot, 3) == 2
    monkeypatch.setattr(Detector, "on_gpu", True)
    assert [fitting_batch(few_shot, wanted) for wanted in (None, 3)] == [16, 3]


def test_a_clip_is_the_same_in_batches_and_read_ahead(few_shot):
    from recap.io.case import Case, LazyImages
    from recap.types import Image

    def frame(number):
        pixels = np.random.default_rng(number).random((30, 40), np.float32)
        return Image(pixels, f"frame {number}")

    clip = Case("frames", "clip", LazyImages(7, frame))
    one, other = score_case(few_shot, clip), score_case(few_shot, clip, batch=3, workers=1)
    assert [image.score for image in one.images] == [image.score for image in other.images]
    assert np.array_equal(one.map, other.map)


def test_few_cases_are_in_memory_at_once(few_shot, many, tmp_path, monkeypatch):
    lock, alive, most = threading.Lock(), set(), []
    original = Found.open

    def change(source, there):
        with lock:
            (alive.add if there else alive.discard)(source)
            most.append(len(alive))

    def opened(self, reading):
        case = original(self, reading)
        change(case.source, True)
        return case

    monkeypatch.setattr(Found, "open", opened)
    score_to_folder(
        few_shot, many, tmp_path, lambda c, p, path: change(c.source, False), workers=1, batch=2
    )
    # One being read, three waiting for the model at most, two being written.
    assert not alive
    assert max(most) <= 6


def test_a_batch_runs_as_one_on_a_gpu(few_shot, many, whole, tmp_path, monkeypatch):
    sizes, original = [], Detector.raw_output

    def output(self, images):
        sizes.append(len(images))
        return original(self, images)

    monkeypatch.setattr(Detector, "on_gpu", True)
    monkeypatch.setattr(Detector, "raw_output", output)
    rows = score_to_folder(few_shot, many, tmp_path, draw, batch=4)
    assert sizes == [4, 4, 2]
    earlier = score_to_folder(few_shot, many, whole, draw)
    for row, expected in zip(rows, earlier, strict=True):
        if row.status == "ok":
            assert float(row.score) == pytest.approx(float(expected.score), abs=1e-5)


@pytest.mark.parametrize("gpu", [False, True])
def test_an_error_of_the_model_is_the_row_of_its_case(gpu, few_shot, many, tmp_path, monkeypatch):
    original = Detector.raw_output

    def fails(self, images):
        if any(image.source.endswith("05.png") for image in images):
            raise InputError("05.png: the model does not like it.")
        return original(self, images)

    monkeypatch.setattr(Detector, "on_gpu", gpu)
    monkeypatch.setattr(Detector, "raw_output", fails)
    rows = score_to_folder(few_shot, many, tmp_path, draw, batch=4)
    failed = {row.case: row.error for row in rows if row.status == "error"}
    assert list(failed) == ["03.png", "05.png", "07.png"]
    assert failed["05.png"] == "05.png: the model does not like it."


@pytest.mark.parametrize("stage", ["read", "score", "write"])
def test_after_a_crash_in_any_stage_what_was_finished_is_there(
    stage, few_shot, many, whole, tmp_path, monkeypatch
):
    """A defect is not an InputError: it ends the run, but costs no finished row."""
    original, raw = Found.open, Detector.raw_output

    def opened(self, reading):
        if stage == "read" and self.name == "08.png":
            raise ZeroDivisionError
        return original(self, reading)

    def output(self, images):
        if stage == "score" and images[0].source.endswith("08.png"):
            raise ZeroDivisionError
        return raw(self, images)

    def drawn(case, prediction, path):
        if stage == "write" and case.source.endswith("08.png"):
            raise ZeroDivisionError
        draw(case, prediction, path)

    with monkeypatch.context() as patch:
        patch.setattr(Found, "open", opened)
        patch.setattr(Detector, "raw_output", output)
        with pytest.raises(ZeroDivisionError):
            score_to_folder(few_shot, many, tmp_path, drawn, workers=2)
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "running"
    table = (tmp_path / "scores.csv").read_text()
    assert all(f"{number:02d}.png" in table for number in range(8))
    assert "08.png" not in table
    score_to_folder(few_shot, many, tmp_path, draw)
    assert contents(tmp_path) == contents(whole)


def test_shards_joined_are_the_whole(few_shot, many, whole, tmp_path, monkeypatch):
    scored, original = [], few_shot.prediction
    monkeypatch.setattr(
        few_shot,
        "prediction",
        lambda output, index, image: scored.append(image.source) or original(output, index, image),
    )
    shards = [Shard(number, 3) for number in (2, 3, 1)]
    rows = [score_to_folder(few_shot, many, tmp_path, draw, shard=shard) for shard in shards]
    assert sum(len(part) for part in rows) == len(many)
    assert not (tmp_path / "scores.csv").exists()
    for shard in shards:
        manifest = json.loads((tmp_path / shard.file("manifest.json")).read_text())
        assert (manifest["status"], manifest["shard"]) == ("complete", str(shard))
        assert list(manifest["sha256"]) == [shard.file("scores.csv")]
    joined = score_to_folder(few_shot, many, tmp_path, draw)
    assert len(scored) == len(set(scored)) == 10
    assert [row.case for row in joined] == [case.name for case in many]
    assert contents(tmp_path) == contents(whole)


def test_a_shard_that_was_not_run_is_scored_when_joining(few_shot, many, whole, tmp_path):
    score_to_folder(few_shot, many, tmp_path, draw, shard=Shard(1, 2))
    score_to_folder(few_shot, many, tmp_path, draw)
    assert contents(tmp_path) == contents(whole)


def test_shards_of_two_detectors_never_mix(few_shot, detectors, many, tmp_path):
    score_to_folder(few_shot, many[:2], tmp_path, draw, shard=Shard(1, 2))
    with pytest.raises(InputError, match="another detector"):
        score_to_folder(detectors["normal-only"], many[:2], tmp_path, draw, shard=Shard(2, 2))
